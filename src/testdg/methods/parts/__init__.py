"""What two methods or more are made of: learners, teachers, branches, views, losses."""
