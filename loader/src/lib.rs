//! Opens a `.htz` artifact or a GGUF, binds it to an architecture and executes it on the CPU.
//!
//! ```no_run
//! use htc_loader::{Model, Pool, Session};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("model.htz".as_ref())?;
//! let pool = Pool::new(2)?;
//! let mut session = Session::new(&model, &pool, 512);
//! session.forward(&[1])?;
//! let logits = session.last_logits()?;
//! assert_eq!(logits.len(), model.hyper().vocabulary);
//! # Ok(()) }
//! ```

pub mod backend;
pub mod error;
pub mod exec;
pub mod generate;
pub mod kv;
pub mod linear;
pub mod model;
pub mod sampling;
pub mod tensor;
pub mod tokenizer;

pub use backend::{Backend, Cpu};
pub use error::{ExecError, LoadError};
pub use exec::Session;
pub use htc_kernels::Pool;
pub use model::Model;
