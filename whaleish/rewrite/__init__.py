"""The rewriter: a logical graph and its plan in, the graph that this process runs out. Protos in, protos out."""
