"""Parts that several methods share: learners, teachers, branches, views, losses."""
