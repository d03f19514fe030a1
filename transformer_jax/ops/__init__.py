"""Pure functions of arrays: attention, masks, embeddings, norms, dense layers, losses, dropout."""
