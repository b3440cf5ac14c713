"""`load_model`: a hub id, a folder, a timm name or a module becomes a `VisionModel`; `convert` writes folders."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from testdg.errors import UserError, unknown
from testdg.files import writing
from testdg.models import hub, resnet, timm_models
from testdg.models.alignment import FILE, load_alignment
from testdg.models.blocks import save_tensors
from testdg.models.checkpoints import (
    PICKLED,
    Fitted,
    load_fitting,
    load_into,
    load_strictly,
    read_checkpoint,
    resnet_from_weights,
    timm_network,
    with_classes_of,
    without_network,
)
from testdg.models.heads import wrap
from testdg.models.model import ARCHITECTURES, MODEL_TYPE, VisionModel
from testdg.models.preprocessing import Preprocessing, identity_with_warning, read_preprocessor
from testdg.models.segformer import IMAGENET, set_epsilon
from testdg.models.untrusted import (
    CONFIG,
    UNKNOWN,
    WEIGHTS,
    Budget,
    budget_of,
    check_network,
    find_weights,
    first_line,
    read_config,
    require_finite,
)
from testdg.registry import load_plugins

Make = Callable[[], nn.Module]
F = TypeVar("F", bound=Make)
_MODELS: dict[str, Make] = {}
BRANCHES = "branches.safetensors"
DEVICES = ("auto", "cpu", "cuda", "mps")


def register_model(name: str) -> Callable[[F], F]:
    """Register a function that returns a module or a `VisionModel` under a name, for `--model NAME`."""
    if not name.isidentifier():
        raise UserError(f"the name of a model must be letters, digits and _; got {name!r}", code="model-name")

    def add(make: F) -> F:
        _MODELS[name] = make
        return make

    return add


def load_model(
    source: str | Path | nn.Module,
    *,
    module: nn.Module | str | None = None,
    preprocessing: Preprocessing | None = None,
    head: str | None = None,
    name: str | None = None,
    classes: Sequence[str] | None = None,
) -> VisionModel:
    """Load a model, in evaluation mode and single precision; a module is copied.

    The model is on the CPU, whatever torch's default device is; the copy of a module is on the module's device.

    Args:
        source: A folder with `config.json` and safetensors weights, a hub id (`google/vit-base-patch16-224`), a timm
            model (`timm:vit_base_patch16_384`), the weights of a CIFAR ResNet (`resnet20.safetensors`, or a folder
            with that file alone), or any module that returns logits.
        module: The network for weights without a known architecture (a folder that `export` wrote, a .pt or .pth
            file of tensors): a module, or the name of a timm model.
        preprocessing: Size, mean and deviation instead of the model's own.
        head: The name of the classifier of an unusual module.
        name: The name of the model in records.
        classes: The names of its classes.

    Examples:
        >>> import testdg
        >>> from testdg.models import TinyViT
        >>> model = testdg.load_model(TinyViT(), preprocessing=testdg.Preprocessing((32, 32)), name="mine")
        >>> model.name, model.classes, model.task
        ('mine', 10, 'classification')
    """
    with torch.device("cpu"):  # whatever the default device is
        if isinstance(source, str) and source.isidentifier():
            load_plugins()
            if source in _MODELS:
                made = _MODELS[source]()
                name = name or (None if isinstance(made, VisionModel) else source)
                source = made
        if isinstance(source, nn.Module) and module is not None:
            raise UserError("module= is for weights in a file or folder: leave it out", code="option-conflict")
        if isinstance(source, VisionModel):
            for key, value in {"preprocessing": preprocessing, "head": head, "name": name}.items():
                if value is not None and value != getattr(source, key):
                    own = f"model {source.name} was loaded with its own {key}"
                    raise UserError(f"{own}: give {key}= to load_model", code="option-conflict")
            model = source if classes is None else copy.copy(source)
        elif isinstance(source, nn.Module):
            name = name or type(source).__name__
            preprocessing = preprocessing or identity_with_warning(name, stacklevel=3)
            model = wrap(copy.deepcopy(source).float().eval(), preprocessing, head, name)
        else:
            model = _from_place(str(source), module, preprocessing, head)
            model.name = name or model.name
    if classes is not None:
        model.name_classes(classes)
    return model


def find_device(name: str) -> torch.device:
    """The device of a name; `auto` is an accelerator if there is one."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind in available if available[kind]))
    if not available[name]:
        raise UserError(f"device {name!r} is not available on this machine: use --device auto or cpu", code="no-device")
    return torch.device(name)


def _from_place(
    source: str, module: nn.Module | str | None, preprocessing: Preprocessing | None, head: str | None
) -> VisionModel:
    """A model in a folder, in a file, or on a hub."""
    path, weights = Path(source), None  # weights: a safetensors file without a configuration
    if path.suffix == ".safetensors" and not path.is_dir():
        weights = path
    elif not (path / CONFIG).exists() and len(found := list(path.glob("*.safetensors"))) == 1:
        weights = found[0]
    if module is not None:
        model = load_into(module, path, preprocessing, head)
    elif source.startswith(("timm:", "timm/")):
        network = timm_models.make_network(source, pretrained=True)
        model = wrap(network, preprocessing or timm_models.preprocessing_of(network), head, source)
    elif path.suffix in PICKLED and not path.is_dir():
        if not path.is_file():
            raise UserError(f"{path} does not exist", code="no-such-file")
        also = f"testdg convert {path} --timm NAME --out FOLDER, or "
        raise without_network(path, "weights without their network", also=also)
    elif weights is not None:
        network = resnet_from_weights(read_checkpoint(weights), str(weights))
        preprocessing = preprocessing or read_preprocessor(weights.parent) or resnet.PREPROCESSING
        model = wrap(network, preprocessing, head, weights.stem)
    elif path.is_dir():
        model = _from_folder(path, path.name, str(path), preprocessing, head)
    else:
        path = hub.fetch(source)
        stored = any(file.name != FILE for file in path.glob("*.safetensors"))
        model = _from_folder(path, source, str(path) if stored else source, preprocessing, head)
    if (path / FILE).is_file():
        load_alignment(model, path)
    model = model.float().eval()
    require_finite(model, source)
    return model


def _from_folder(
    folder: Path, name: str, place: str, preprocessing: Preprocessing | None, head: str | None
) -> VisionModel:
    """A model of a folder with a configuration; `place` is the hub id if the weights must still be downloaded."""
    budget = budget_of(find_weights(folder)) if place == str(folder) else UNKNOWN
    config = read_config(folder)
    segmentation = any("SemanticSegmentation" in one for one in config.get("architectures") or [])
    preprocessing = preprocessing or read_preprocessor(folder, dense=segmentation)
    kind = config.get("model_type")
    if kind == MODEL_TYPE:
        own = config.get("module") if str(config.get("module")).isidentifier() else "Module"
        raise without_network(folder, f"the weights of {own}, which only its code can make", f"{own}()")
    if kind == timm_models.MODEL_TYPE:
        return load_into(timm_models.network_of(folder, config), folder, preprocessing, head)
    if kind in ARCHITECTURES:
        preprocessing = preprocessing or Preprocessing()
        return wrap(_load_own(folder, config, preprocessing, budget), preprocessing, head, name)
    if segmentation and kind != "segformer":
        first = config["architectures"][0]
        raise UserError(f"{place} is a {first}: only SegFormers are supported for segmentation", code="wrong-task")
    return wrap(*_from_transformers(place, segmentation, preprocessing, budget), head, name)


def _load_own(folder: Path, config: Mapping[str, Any], preprocessing: Preprocessing, budget: Budget) -> nn.Module:
    """A network of this package."""
    network_class = ARCHITECTURES[config["model_type"]]
    make = partial(network_class, **{key: value for key, value in config.items() if key != "model_type"})
    try:
        check_network(make, preprocessing, budget, str(folder))
        network = make()
    except UserError:
        raise
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        problem = f"{folder / CONFIG} does not describe a {network_class.__name__}: {first_line(error)}"
        raise UserError(problem, code="bad-config") from error
    load_strictly(read_checkpoint(folder / WEIGHTS), network, str(folder / WEIGHTS), CONFIG)
    return network


def _from_transformers(
    place: str, segmentation: bool, preprocessing: Preprocessing | None, budget: Budget
) -> tuple[nn.Module, Preprocessing]:
    """A network of transformers, and its preprocessing, by default the usual one of such networks."""
    import transformers

    auto = transformers.AutoModelForImageClassification
    if segmentation:
        auto = transformers.AutoModelForSemanticSegmentation
    try:
        about = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        if preprocessing is None:
            size = about.image_size if isinstance(getattr(about, "image_size", None), int) else 224
            preprocessing = IMAGENET if segmentation else Preprocessing((size, size), mean=(0.5,) * 3, std=(0.5,) * 3)
        check_network(lambda: auto.from_config(about, trust_remote_code=False), preprocessing, budget, place)
        network, info = auto.from_pretrained(
            place, use_safetensors=True, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    except UserError:
        raise
    except Exception as error:  # an impossible configuration raises nearly anything
        raise UserError(f"transformers could not load {place}: {first_line(error)}", code="bad-config") from error
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(problem):
            first = sorted(map(str, info[problem]))[0]
            count = f"{len(info[problem])} {problem.replace('_', ' ')}"
            raise UserError(f"{place}: {count}, first {first}", code="wrong-weights")
    if segmentation:
        set_epsilon(network)
    return network, preprocessing


def convert(file: Path, out: Path, *, timm: str | None = None, like: str | None = None) -> tuple[VisionModel, Fitted]:
    """Write the weights of a checkpoint as a model folder; branches parallel to layers get their own file.

    The network is one of timm by its name, or of the kind of another model, folder or hub id. Returns the model, and
    where each tensor of the checkpoint was put.
    """
    if (timm is None) == (like is None):
        raise UserError("name the network: either --timm NAME, or --like FOLDER", code="option-conflict")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} exists already: choose another --out, or delete it", code="folder-exists")
    if not file.is_file():
        raise UserError(f"{file} does not exist", code="no-such-file")
    given = read_checkpoint(file)
    model = with_classes_of(given, load_model(like)) if like is not None else timm_network(str(timm), given)
    fitted = load_fitting(given, model.network, str(file), model.name)
    require_finite(model, str(file))
    with writing(out):
        model.save(out)
        if fitted.branches:
            save_tensors(fitted.branches, out / BRANCHES)
    return model, fitted
