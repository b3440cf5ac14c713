"""What methods are made of: learners, teachers, branches, prompts, memories, losses."""
