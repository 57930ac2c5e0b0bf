"""txcore beside what people use instead of it: each system measured alone, in turn, on one machine."""
