"""How experience flows from the envs to the learner."""
