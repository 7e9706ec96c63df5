"""What a conversion cost: the variant's graph against the original's, both in float64, where no kernel plays a part."""
