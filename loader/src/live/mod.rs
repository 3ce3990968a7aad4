//! Thermal and power control during decoding: reads temperature and power of the device, derives
//! the active fraction of the model, and accounts for the energy of tokens.
//!
//! ```text
//! sensor ──Reading──> Controller ──fraction──> Follow ──> the decode loop: one atomic load for each token
//!    NVML, hwmon, a     Law: T, P -> fraction     │
//!    trace, a plant         │                     └────> a simulated plant
//!    └──Reading──> Meter    └──> Event ──> EventsFile, messages
//! ```
//!
//! The [`Governor`] is the thread that does all of this. [`Controller`] and [`EnergyAccumulator`]
//! are pure arithmetic without threads, files or clocks, for programs with an existing loop.
//!
//! ```
//! # use std::time::Duration;
//! # use htc_loader::live::{SharedFraction, Governor, GovernorOptions, ControlLaw, ControlLawOptions, EnergyPhase, SensorSpec, open_sensor};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let follow = SharedFraction::new();
//! let spec: SensorSpec = "sim:start=80,speed=100".parse()?;
//! let law = ControlLaw::new(ControlLawOptions { min_fraction: 0.5, ..ControlLawOptions::default() })?;
//! let options = GovernorOptions { interval: Duration::from_millis(5), ..GovernorOptions::default() };
//! let governor = Governor::start(open_sensor(&spec, &follow)?, law, options, &follow, |event| {
//!     if let Some(warning) = event.warning() {
//!         eprintln!("{warning}");
//!     }
//! })?;
//! governor.enter_phase(EnergyPhase::Work)?;
//! // For each token, after session.follow_with(follow.clone(), Fraction::FULL)?: session.follow()?; session.step(&[token])?;
//! assert!(follow.fraction() < 1.0);
//! governor.enter_phase(EnergyPhase::Other)?;
//! let energy = governor.stop()?.ok_or("no power")?;
//! println!("{:?} tokens per joule", energy.tokens_per_joule(64));
//! # Ok(()) }
//! ```
//!
//! # Effect of a smaller fraction
//!
//! A smaller fraction reads fewer bytes per token, which costs less energy *per token*. Its effect
//! on power depends on the loop: one with a fixed token rate draws less, one that decodes as fast
//! as possible generates more tokens per second and may draw as much as before.

mod clock;
pub mod control;
pub mod energy;
mod error;
mod event;
mod follow;
mod governor;
pub mod sensor;

pub use clock::Clock;
pub use control::{
    ControlLaw, ControlLawOptions, Controller, Decision, LimitReason, ReadingStatus,
};
pub use energy::{Energy, EnergyAccumulator, EnergyPhase, Source};
pub use error::LiveError;
pub use event::{Event, EventKind, EventsFile, Quantity};
pub use follow::SharedFraction;
pub use governor::{Governor, GovernorOptions};
pub use sensor::{GpuSelector, Reading, Sensor, SensorInfo, SensorSpec, open_sensor};
