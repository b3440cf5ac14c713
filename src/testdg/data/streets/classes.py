"""The classes of a street scene, and the colours in which label maps are shown."""

CLASSES = ("road", "pavement", "building", "fence", "pole", "vegetation", "sky", "person", "car")
ROAD, PAVEMENT, BUILDING, FENCE, POLE, VEGETATION, SKY, PERSON, CAR = range(len(CLASSES))

PALETTE = (
    (128, 64, 128),
    (244, 35, 232),
    (70, 70, 70),
    (190, 153, 153),
    (220, 220, 0),
    (107, 142, 35),
    (70, 130, 180),
    (220, 20, 60),
    (0, 0, 142),
)
