//! What happens while a model decodes: how warm the device is and what it draws, how much of the model follows from
//! that, and what the tokens cost in joules.

mod clock;
pub mod control;
pub mod energy;
mod follow;
pub mod sensor;

pub use clock::Clock;
pub use control::{Controller, Decision, Law, LawError, LawOptions, Sense, Why};
pub use energy::{Energy, Meter, Phase, Source};
pub use follow::Follow;
pub use sensor::{Reading, Sensor, SensorError, SensorSpec, open};
