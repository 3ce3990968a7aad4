//! The thread that asks the sensor.

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

/// How a governor works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GovernorOptions {
    /// Time between readings, in seconds of the system (500 ms).
    pub interval: Duration,
    /// Longest time between readings that the power is integrated over, on the sensor's clock (5 s).
    pub longest_gap: Duration,
    /// What the device draws when it idles, watts; else what is measured in [`Phase::Idle`].
    pub idle_watts: Option<f64>,
    /// How long [`enter`](Governor::enter) and [`stop`](Governor::stop) wait for a sensor that does not answer (2 s).
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
    /// For a sensor whose clock goes so many times as fast as that of the system: readings that are one interval apart are
    /// joined, however fast it is.
    pub fn with_speed(self, speed: f64) -> Self {
        GovernorOptions {
            longest_gap: self.longest_gap.mul_f64(speed.max(1.0)),
            ..self
        }
    }
}

/// Why a model is not followed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GovernorError {
    /// Readings that are too close.
    #[error("{sensor} is read every {asked:?}, expected at least {least:?} between readings")]
    Interval {
        /// The sensor.
        sensor: String,
        /// The time given.
        asked: Duration,
        /// What the sensor allows.
        least: Duration,
    },
    /// An idle power that is none.
    #[error("the idle power is {0} W, expected a finite number of at least 0")]
    IdleWatts(f64),
    /// The system makes no thread.
    #[error("no thread for the sensor: {0}; end other programs, or allow more threads")]
    Thread(std::io::Error),
    /// The sensor does not answer.
    #[error(
        "{sensor} has not answered for {patience:?}; its thread is left behind, check the device and its driver"
    )]
    Stuck {
        /// The sensor.
        sensor: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The thread ended by a panic, of the sensor or of the function that takes events. The fraction is the base.
    #[error("the thread that reads {sensor} ended by a panic; this is an error in the program")]
    Panicked {
        /// The sensor.
        sensor: String,
    },
}

/// Reads a sensor on a thread of its own, decides by a [`Law`], and counts joules.
///
/// While it lives the fraction in its [`Follow`] is what the device allows; afterwards it is 1, the base. Dropping it stops it.
#[derive(Debug)]
pub struct Governor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    follow: Arc<Follow>,
    sensor: String,
    patience: Duration,
}

/// What the governor and its thread share.
#[derive(Debug)]
struct Shared {
    orders: Mutex<Orders>,
    /// Told of every change of the orders, by both sides.
    changed: Condvar,
    meter: Mutex<Meter>,
}

#[derive(Debug)]
struct Orders {
    stop: bool,
    law: Law,
    /// The phase to enter, and how many were asked for.
    phase: Phase,
    asked: u64,
    /// How many were entered.
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
        // Whoever panicked left whole numbers behind.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Governor {
    /// Starts the thread, with a first reading at once. `on_event` is called on that thread and holds it up: it should not wait.
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

    /// Where the fraction is read.
    pub fn follow(&self) -> &Arc<Follow> {
        &self.follow
    }

    /// Changes the least fraction, for instance to what a model can do. It takes effect with the next reading.
    ///
    /// # Errors
    /// [`LawError`] outside (0, 1].
    pub fn set_least(&self, least: f64) -> Result<(), LawError> {
        let mut orders = self.shared.orders();
        orders.law = orders.law.with_least(least)?;
        Ok(())
    }

    /// From now on the device does something else, as far as energy is concerned. It waits for a reading at this moment, beside those of every interval: call it where
    /// work begins and ends, not for each token.
    ///
    /// # Errors
    /// [`GovernorError::Stuck`], [`GovernorError::Panicked`]; the phase is entered with the next reading then, if there is one.
    pub fn enter(&self, phase: Phase) -> Result<(), GovernorError> {
        let mut orders = self.shared.orders();
        orders.phase = phase;
        orders.asked += 1;
        let ticket = orders.asked;
        self.shared.changed.notify_all();
        let waited = self.wait(orders, |orders| orders.entered >= ticket);
        waited.map(|_| ())
    }

    /// What the work has taken so far; `None` where no power is known.
    pub fn energy(&self) -> Option<Energy> {
        self.shared.meter().energy()
    }

    /// Ends the thread, at once if it does not just read the sensor. What the work took; of work that was not ended by [`enter`](Governor::enter),
    /// up to the latest reading.
    ///
    /// # Errors
    /// [`GovernorError::Stuck`], [`GovernorError::Panicked`]; the fraction is the base in any case.
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
        // A thread that is left behind finds that it is to stop, and changes nothing any more.
        self.follow.set(1.0);
        ended?;
        // It has nothing left to do, and cannot panic any more.
        let _ = thread.join();
        Ok(())
    }

    /// Waits until something is so or the thread has ended.
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
        // Nobody is left to be told.
        let _ = self.end();
    }
}

/// The thread's own.
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
    /// Works until it is to stop, and says how it ended.
    fn guarded(mut self, interval: Duration) {
        // Nothing of it is looked at afterwards but what is replaced.
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
            // It was checked when it was set.
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

    /// One reading and what follows from it; its time.
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
        // A reading that took so long that nobody waits for it any more decides nothing.
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
        // Before 1970 there was no such clock.
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

/// What a sensor said in the place of what was lost.
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
