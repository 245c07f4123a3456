//! ElasticDL's data plane, without any Python in it.
pub mod bfloat;
pub mod finite;
pub mod net;
pub mod ps;
pub mod records;
