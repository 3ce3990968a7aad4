//! Sensor polling thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;

use super::control::{Controller, Decision, Law, LawError, Sense};
use super::energy::{Energy, Meter, Phase};
use super::event::{Event, Quantity, What};
use super::sensor::{POLL, Reading, Sensor, SensorError};
use super::{Clock, Follow};

/// Options of a governor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GovernorOptions {
    /// Time between readings, in system time (500 ms).
    pub interval: Duration,
    /// Maximum time between readings for power integration, on the sensor's clock (5 s).
    pub longest_gap: Duration,
    /// Idle power in watts; by default measured in [`Phase::Idle`].
    pub idle_watts: Option<f64>,
    /// Timeout of [`enter`](Governor::enter) and [`stop`](Governor::stop) for a sensor that does
    /// not respond (2 s).
    pub patience: Duration,
}

impl Default for GovernorOptions {
    fn default() -> Self {
        GovernorOptions {
            interval: POLL,
            longest_gap: Duration::from_secs(5),
            idle_watts: None,
            patience: Duration::from_secs(2),
        }
    }
}

impl GovernorOptions {
    /// Returns options for a sensor whose clock runs `speed` times as fast as the system clock:
    /// readings one interval apart are still integrated.
    pub fn with_speed(self, speed: f64) -> Self {
        GovernorOptions {
            longest_gap: self.longest_gap.mul_f64(speed.max(1.0)),
            ..self
        }
    }
}

/// Errors of a governor.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GovernorError {
    /// The interval is too short.
    #[error("{sensor} is read every {asked:?}, expected at least {least:?} between readings")]
    Interval {
        /// Sensor name.
        sensor: String,
        /// Requested interval.
        asked: Duration,
        /// Shortest interval of the sensor.
        least: Duration,
    },
    /// The idle power is invalid.
    #[error("the idle power is {0} W, expected a finite number of at least 0")]
    IdleWatts(f64),
    /// The thread cannot be created.
    #[error("no thread for the sensor: {0}; end other programs, or allow more threads")]
    Thread(std::io::Error),
    /// The sensor does not respond.
    #[error(
        "{sensor} has not answered for {patience:?}; its thread is left behind, check the device and its driver"
    )]
    Stuck {
        /// Sensor name.
        sensor: String,
        /// Timeout.
        patience: Duration,
    },
    /// The thread panicked, in the sensor or the event callback. The fraction is 1.
    #[error("the thread that reads {sensor} ended by a panic; this is an error in the program")]
    Panicked {
        /// Sensor name.
        sensor: String,
    },
}

/// Polls a sensor on a separate thread, applies a [`Law`], and accumulates energy.
///
/// It controls the fraction of its [`Follow`], which is reset to 1 afterwards. Dropping it stops
/// the thread.
#[derive(Debug)]
pub struct Governor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    follow: Arc<Follow>,
    sensor: String,
    patience: Duration,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<Orders>,
    /// Notified by both sides of every change of the orders.
    changed: Condvar,
    meter: Mutex<Meter>,
}

#[derive(Debug)]
struct Orders {
    stop: bool,
    law: Law,
    phase: Phase,
    asked: u64,
    entered: u64,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stopped,
    Panicked,
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        // The fields are valid even after a panic.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Governor {
    /// Starts the thread, with an immediate first reading. `on_event` is called on that thread and
    /// must not block.
    ///
    /// # Errors
    /// [`GovernorError::Interval`], [`GovernorError::IdleWatts`], [`GovernorError::Thread`].
    pub fn start(
        sensor: Box<dyn Sensor>,
        law: Law,
        options: GovernorOptions,
        follow: &Arc<Follow>,
        on_event: impl FnMut(&Event) + Send + 'static,
    ) -> Result<Governor, GovernorError> {
        let name = sensor.name();
        let least = sensor.lowest_interval().max(Duration::from_millis(1));
        if options.interval < least {
            return Err(GovernorError::Interval {
                sensor: name,
                asked: options.interval,
                least,
            });
        }
        match options.idle_watts {
            Some(watts) if !(watts.is_finite() && watts >= 0.0) => {
                return Err(GovernorError::IdleWatts(watts));
            }
            _ => {}
        }
        let shared = Arc::new(Shared {
            orders: Mutex::new(Orders {
                stop: false,
                law,
                phase: Phase::Other,
                asked: 0,
                entered: 0,
                end: None,
            }),
            changed: Condvar::new(),
            meter: Mutex::new(Meter::new(options.longest_gap, options.idle_watts)),
        });
        let watch = Watch {
            clock: sensor.clock(),
            sensor,
            controller: Controller::new(law),
            follow: Arc::clone(follow),
            shared: Arc::clone(&shared),
            on_event,
            was_lost: false,
            beyond: false,
            was_beyond: false,
        };
        let builder = thread::Builder::new().name("htc-governor".to_owned());
        let thread = builder.spawn(move || watch.guarded(options.interval));
        Ok(Governor {
            thread: Some(thread.map_err(GovernorError::Thread)?),
            shared,
            follow: Arc::clone(follow),
            sensor: name,
            patience: options.patience,
        })
    }

    /// Returns the shared fraction.
    pub fn follow(&self) -> &Arc<Follow> {
        &self.follow
    }

    /// Changes the least fraction, e.g. to that supported by a model, from the next reading on.
    ///
    /// # Errors
    /// [`LawError`] outside (0, 1].
    pub fn set_least(&self, least: f64) -> Result<(), LawError> {
        let mut orders = self.shared.orders();
        orders.law = orders.law.with_least(least)?;
        Ok(())
    }

    /// Changes the energy phase. It waits for an extra reading at this moment: call it at the
    /// beginning and end of work, not per token.
    ///
    /// # Errors
    /// [`GovernorError::Stuck`], [`GovernorError::Panicked`]; the phase then changes with the next
    /// reading, if any.
    pub fn enter(&self, phase: Phase) -> Result<(), GovernorError> {
        let mut orders = self.shared.orders();
        orders.phase = phase;
        orders.asked += 1;
        let ticket = orders.asked;
        self.shared.changed.notify_all();
        let waited = self.wait(orders, |orders| orders.entered >= ticket);
        waited.map(|_| ())
    }

    /// Returns the energy of the work so far; `None` without power.
    pub fn energy(&self) -> Option<Energy> {
        self.shared.meter().energy()
    }

    /// Stops the thread, immediately unless it is reading the sensor. Returns the energy of the
    /// work, up to the latest reading if its phase was not ended by [`enter`](Governor::enter).
    ///
    /// # Errors
    /// [`GovernorError::Stuck`], [`GovernorError::Panicked`]; the fraction is 1 in any case.
    pub fn stop(mut self) -> Result<Option<Energy>, GovernorError> {
        self.end()?;
        Ok(self.energy())
    }

    fn end(&mut self) -> Result<(), GovernorError> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let mut orders = self.shared.orders();
        orders.stop = true;
        self.shared.changed.notify_all();
        let ended = self.wait(orders, |_| false);
        // An abandoned thread sees the stop flag and changes nothing.
        self.follow.set(1.0);
        ended?;
        // It is about to return and cannot panic.
        let _ = thread.join();
        Ok(())
    }

    fn wait(
        &self,
        orders: MutexGuard<'_, Orders>,
        done: impl Fn(&Orders) -> bool,
    ) -> Result<(), GovernorError> {
        let waiting = |orders: &mut Orders| !done(orders) && orders.end.is_none();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(orders, self.patience, waiting);
        let (orders, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let sensor = || self.sensor.clone();
        match orders.end {
            Some(End::Panicked) => Err(GovernorError::Panicked { sensor: sensor() }),
            None if !done(&orders) => Err(GovernorError::Stuck {
                sensor: sensor(),
                patience: self.patience,
            }),
            _ => Ok(()),
        }
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        // A destructor cannot return the error.
        let _ = self.end();
    }
}

struct Watch<F> {
    sensor: Box<dyn Sensor>,
    clock: Clock,
    controller: Controller,
    follow: Arc<Follow>,
    shared: Arc<Shared>,
    on_event: F,
    was_lost: bool,
    beyond: bool,
    was_beyond: bool,
}

impl<F: FnMut(&Event)> Watch<F> {
    fn guarded(mut self, interval: Duration) {
        // After a panic only fields that are overwritten are used.
        let worked = catch_unwind(AssertUnwindSafe(|| self.work(interval)));
        self.follow.set(1.0);
        self.follow.set_busy(true);
        let mut orders = self.shared.orders();
        orders.end = Some(match worked {
            Ok(()) => End::Stopped,
            Err(_) => End::Panicked,
        });
        self.shared.changed.notify_all();
    }

    fn work(&mut self, interval: Duration) {
        self.tell(
            &Reading {
                at: self.clock.now(),
                ..Reading::default()
            },
            What::Start {
                sensor: self.sensor.name(),
                notes: self.sensor.notes().to_vec(),
            },
        );
        loop {
            let next = Instant::now() + interval;
            let (law, phase, asked) = {
                let orders = self.shared.orders();
                if orders.stop {
                    break;
                }
                (orders.law, orders.phase, orders.asked)
            };
            // Already validated.
            if law != *self.controller.law() {
                let _ = self.controller.set_least(law.least());
            }
            let at = self.look();
            let shared = Arc::clone(&self.shared);
            let mut orders = shared.orders();
            if orders.entered < asked {
                shared.meter().enter(phase, at);
                self.follow.set_busy(phase != Phase::Idle);
                orders.entered = asked;
                shared.changed.notify_all();
            }
            let waiting = |orders: &mut Orders| !orders.stop && orders.entered >= orders.asked;
            let left = next.saturating_duration_since(Instant::now());
            drop(shared.changed.wait_timeout_while(orders, left, waiting));
        }
        self.follow.set(1.0);
        let end = Reading {
            at: self.clock.now(),
            ..Reading::default()
        };
        self.tell(&end, What::Stop);
    }

    fn look(&mut self) -> Duration {
        let (reading, decision, error) = match self.sensor.read() {
            Ok(reading) => {
                self.shared.meter().push(&reading);
                (reading, self.controller.step(&reading), None)
            }
            Err(error) => {
                let at = self.clock.now();
                let none = Reading {
                    at,
                    ..Reading::default()
                };
                (none, self.controller.miss(at), Some(error))
            }
        };
        let before = self.follow.fraction();
        // A reading after the timeout has no effect.
        if !self.shared.orders().stop {
            self.follow.set(decision.fraction);
            self.report(&reading, &decision, before, error.as_ref());
        }
        reading.at
    }

    fn report(
        &mut self,
        reading: &Reading,
        decision: &Decision,
        before: f64,
        error: Option<&SensorError>,
    ) {
        let senses = [
            (Quantity::Temperature, decision.temperature),
            (Quantity::Power, decision.power),
        ];
        let those = |wanted: Sense| -> Vec<Quantity> {
            let found = senses.iter().filter(|(_, sense)| *sense == wanted);
            found.map(|(quantity, _)| *quantity).collect()
        };
        let (lost, back) = (those(Sense::Lost), those(Sense::Back));
        if !lost.is_empty() {
            let reason = error.map_or_else(|| said(reading, &lost), ToString::to_string);
            let first = !std::mem::replace(&mut self.was_lost, true);
            self.tell(
                reading,
                What::Lost {
                    quantities: lost,
                    reason,
                    first,
                },
            );
        }
        if !back.is_empty() {
            self.tell(reading, What::Back { quantities: back });
        }
        if decision.fraction != before {
            self.tell(reading, What::Change { why: decision.why });
        }
        if decision.beyond && !self.beyond {
            let first = !std::mem::replace(&mut self.was_beyond, true);
            self.tell(reading, What::Beyond { first });
        }
        self.beyond = decision.beyond;
    }

    fn tell(&mut self, reading: &Reading, what: What) {
        // Zero for clocks before 1970.
        let unix = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        (self.on_event)(&Event {
            at: reading.at.as_secs_f64(),
            unix: unix.as_secs_f64(),
            temperature: reading.temperature,
            power: reading.power,
            fraction: self.follow.fraction(),
            what,
        });
    }
}

fn said(reading: &Reading, lost: &[Quantity]) -> String {
    let said = |quantity: &Quantity| {
        let (value, name) = match quantity {
            Quantity::Temperature => (reading.temperature, "temperature"),
            Quantity::Power => (reading.power, "power"),
        };
        match value {
            Some(value) => format!("the sensor says {value} for the {name}"),
            None => format!("the sensor says no {name}"),
        }
    };
    lost.iter().map(said).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
