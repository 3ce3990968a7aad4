//! What happens while a model decodes: how warm the device is and what it draws.

mod clock;
mod follow;
pub mod sensor;

pub use clock::Clock;
pub use follow::Follow;
pub use sensor::{Reading, Sensor, SensorError, SensorSpec, open};
