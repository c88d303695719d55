"""What a run did: facets, probes, the recorder, the file."""
