//! Record files: indexing and random access.
