//! What happens while a model decodes: how warm the device is and what it draws, how much of the model follows from
//! that, and what the tokens cost in joules.
//!
//! ```text
//! sensor ──Reading──> Controller ──fraction──> Follow ──> the decode loop: one atomic load for each token
//!    NVML, hwmon, a     Law: T, P -> fraction     │
//!    trace, a plant         │                     └────> a simulated plant
//!    └──Reading──> Meter    └──> Event ──> EventsFile, messages
//! ```
//!
//! The [`Governor`] is the thread that does all of this. [`Controller`] and [`Meter`] are
//! arithmetic without threads, files or clocks of their own, for programs that have a loop already.
//!
//! ```
//! # use std::time::Duration;
//! # use htc_loader::live::{Follow, Governor, GovernorOptions, Law, LawOptions, Phase, SensorSpec, open};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let follow = Follow::new();
//! let spec: SensorSpec = "sim:start=80,speed=100".parse()?;
//! let law = Law::new(LawOptions { least: 0.5, ..LawOptions::default() })?;
//! let options = GovernorOptions { interval: Duration::from_millis(5), ..GovernorOptions::default() };
//! let governor = Governor::start(open(&spec, &follow)?, law, options, &follow, |event| {
//!     if let Some(warning) = event.warning() {
//!         eprintln!("{warning}");
//!     }
//! })?;
//! governor.enter(Phase::Work)?;
//! // For each token, behind session.follow_with(follow.clone(), Fraction::FULL)?: session.follow()?; session.step(&[token])?;
//! assert!(follow.fraction() < 1.0);
//! governor.enter(Phase::Other)?;
//! let energy = governor.stop()?.ok_or("no power")?;
//! println!("{:?} tokens for each joule", energy.tokens_per_joule(64));
//! # Ok(()) }
//! ```
//!
//! # What a smaller fraction saves
//!
//! A smaller fraction touches fewer bytes for each token, which costs less energy *for each token*. What that does to the
//! power depends on the loop: one that makes as many tokens each second as before draws less, one that decodes as fast
//! as it can makes more tokens each second and may draw as much as before. The method's claim ("higher temperature implies fewer FLOPs
//! per token implies less heat generated per token", Adaptive Compression, section 4.1) is the first; where the second holds no fraction cools the
//! device, the controller ends at the least fraction, and [`What::Beyond`] says so.

mod clock;
pub mod control;
pub mod energy;
mod event;
mod follow;
mod governor;
pub mod sensor;

pub use clock::Clock;
pub use control::{Controller, Decision, Law, LawError, LawOptions, Sense, Why};
pub use energy::{Energy, Meter, Phase, Source};
pub use event::{Event, EventsError, EventsFile, Quantity, What};
pub use follow::Follow;
pub use governor::{Governor, GovernorError, GovernorOptions};
pub use sensor::{Gpu, Reading, Sensor, SensorError, SensorSpec, open};
