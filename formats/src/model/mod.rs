//! Vocabulary shared by all crates: projections, tensor roles, hyper-parameters and the description
//! of the forward pass.

mod form;
mod hyper;
mod kv;
mod projection;
mod role;
pub mod spec;

pub(crate) use form::split_block;
pub use form::{Form, MatrixId, StoredForm, StoredTensor};
pub use hyper::{
    Activation, Experts, Forward, HyperError, HyperParameters, LongRope, RopePairs, SlidingWindow,
};
pub(crate) use kv::BLOCK_KV;
pub use kv::KvSide;
pub use projection::{ActivationPoint, InputGroup, Part, ProjectionKind};
pub(crate) use role::BlockRole;
pub use role::Role;
#[cfg(test)]
pub(crate) use role::tests::roles;
pub use spec::{BlockInput, BlockSpec, ModelSpec, Register, Step};
