"""Pure functions of arrays: attention, masks, positions, dropout."""
