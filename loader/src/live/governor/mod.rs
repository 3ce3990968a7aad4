//! Sensor polling thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use super::control::{ControlLaw, Controller, Decision, ReadingStatus};
use super::energy::{Energy, EnergyAccumulator, EnergyPhase};
use super::event::{Event, EventKind, Quantity};
use super::sensor::{DEFAULT_POLL_INTERVAL, Reading, Sensor};
use super::{Clock, LiveError, SharedFraction};

/// Options of a governor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GovernorOptions {
    /// Time between readings, in system time (500 ms).
    pub interval: Duration,
    /// Maximum time between readings for power integration (5 s).
    pub longest_gap: Duration,
    /// Idle power in watts; by default measured in
    /// [`EnergyPhase::Idle`](crate::live::EnergyPhase::Idle).
    pub idle_watts: Option<f64>,
    /// Timeout for a sensor that does not respond (2 s).
    pub timeout: Duration,
}

impl Default for GovernorOptions {
    fn default() -> Self {
        GovernorOptions {
            interval: DEFAULT_POLL_INTERVAL,
            longest_gap: Duration::from_secs(5),
            idle_watts: None,
            timeout: Duration::from_secs(2),
        }
    }
}

impl GovernorOptions {
    /// Returns options for a sensor whose clock runs `speed` times as fast as the system clock.
    pub fn with_speed(self, speed: f64) -> Self {
        GovernorOptions {
            longest_gap: self.longest_gap.mul_f64(speed.max(1.0)),
            ..self
        }
    }
}

/// Polls a sensor on a separate thread, applies a [`ControlLaw`], and accumulates energy.
///
/// It controls the fraction of its [`SharedFraction`], which is reset to 1 afterwards. Dropping it
/// stops the thread.
#[derive(Debug)]
pub struct Governor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    follow: Arc<SharedFraction>,
    sensor: String,
    patience: Duration,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<GovernorState>,
    /// Notified by both sides of every change of the orders.
    changed: Condvar,
    meter: Mutex<EnergyAccumulator>,
}

#[derive(Debug)]
struct GovernorState {
    stop: bool,
    law: ControlLaw,
    phase: EnergyPhase,
    requested_phases: u64,
    completed_phases: u64,
    end: Option<ThreadOutcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadOutcome {
    Stopped,
    Panicked,
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, GovernorState> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meter(&self) -> MutexGuard<'_, EnergyAccumulator> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Governor {
    /// Starts the thread, with an immediate first reading. `on_event` is called on that thread and
    /// must not block.
    pub fn start(
        sensor: Box<dyn Sensor>,
        law: ControlLaw,
        options: GovernorOptions,
        follow: &Arc<SharedFraction>,
        on_event: impl FnMut(&Event) + Send + 'static,
    ) -> Result<Governor, LiveError> {
        let name = sensor.info().name.clone();
        let least = sensor.info().min_interval.max(Duration::from_millis(1));
        if options.interval < least {
            return Err(LiveError::Interval {
                sensor: name,
                requested: options.interval,
                minimum: least,
            });
        }
        match options.idle_watts {
            Some(watts) if !(watts.is_finite() && watts >= 0.0) => {
                return Err(LiveError::IdleWatts(watts));
            }
            _ => {}
        }
        let shared = Arc::new(Shared {
            orders: Mutex::new(GovernorState {
                stop: false,
                law,
                phase: EnergyPhase::Other,
                requested_phases: 0,
                completed_phases: 0,
                end: None,
            }),
            changed: Condvar::new(),
            meter: Mutex::new(EnergyAccumulator::new(
                options.longest_gap,
                options.idle_watts,
            )),
        });
        let watch = PollingThread {
            clock: sensor.info().clock.clone(),
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
        let thread = builder.spawn(move || watch.run(options.interval));
        Ok(Governor {
            thread: Some(thread.map_err(LiveError::Thread)?),
            shared,
            follow: Arc::clone(follow),
            sensor: name,
            patience: options.timeout,
        })
    }

    /// Returns the shared fraction.
    pub fn shared_fraction(&self) -> &Arc<SharedFraction> {
        &self.follow
    }

    /// Changes the least fraction, e.g. to that supported by a model, from the next reading on.
    pub fn set_min_fraction(&self, least: f64) -> Result<(), LiveError> {
        let mut orders = self.shared.orders();
        orders.law = orders.law.with_min_fraction(least)?;
        Ok(())
    }

    /// Changes the energy phase. It waits for an extra reading: call it at the beginning and end of
    /// work.
    ///
    /// # Errors
    /// [`LiveError::Stuck`], [`LiveError::Panicked`]; the phase then changes with the next
    /// reading, if any.
    pub fn enter_phase(&self, phase: EnergyPhase) -> Result<(), LiveError> {
        let mut orders = self.shared.orders();
        orders.phase = phase;
        orders.requested_phases += 1;
        let ticket = orders.requested_phases;
        self.shared.changed.notify_all();
        let waited = self.wait(orders, |orders| orders.completed_phases >= ticket);
        waited.map(|_| ())
    }

    /// Returns the energy of the work so far; `None` without power.
    pub fn energy(&self) -> Option<Energy> {
        self.shared.meter().energy()
    }

    /// Stops the thread. Returns the energy of the work up to the latest reading.
    ///
    /// # Errors
    /// [`LiveError::Stuck`], [`LiveError::Panicked`]; the fraction is 1 in any case.
    pub fn stop(mut self) -> Result<Option<Energy>, LiveError> {
        self.end()?;
        Ok(self.energy())
    }

    fn end(&mut self) -> Result<(), LiveError> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let mut orders = self.shared.orders();
        orders.stop = true;
        self.shared.changed.notify_all();
        let ended = self.wait(orders, |_| false);
        self.follow.set_fraction(1.0);
        ended?;
        let _ = thread.join();
        Ok(())
    }

    fn wait(
        &self,
        orders: MutexGuard<'_, GovernorState>,
        done: impl Fn(&GovernorState) -> bool,
    ) -> Result<(), LiveError> {
        let waiting = |orders: &mut GovernorState| !done(orders) && orders.end.is_none();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(orders, self.patience, waiting);
        let (orders, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let sensor = || self.sensor.clone();
        match orders.end {
            Some(ThreadOutcome::Panicked) => Err(LiveError::Panicked { sensor: sensor() }),
            None if !done(&orders) => Err(LiveError::Stuck {
                sensor: sensor(),
                timeout: self.patience,
            }),
            _ => Ok(()),
        }
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

struct PollingThread<F> {
    sensor: Box<dyn Sensor>,
    clock: Clock,
    controller: Controller,
    follow: Arc<SharedFraction>,
    shared: Arc<Shared>,
    on_event: F,
    was_lost: bool,
    beyond: bool,
    was_beyond: bool,
}

impl<F: FnMut(&Event)> PollingThread<F> {
    fn run(mut self, interval: Duration) {
        let worked = catch_unwind(AssertUnwindSafe(|| self.poll_until_stopped(interval)));
        self.follow.set_fraction(1.0);
        self.follow.set_busy(true);
        let mut orders = self.shared.orders();
        orders.end = Some(match worked {
            Ok(()) => ThreadOutcome::Stopped,
            Err(_) => ThreadOutcome::Panicked,
        });
        self.shared.changed.notify_all();
    }

    fn poll_until_stopped(&mut self, interval: Duration) {
        let info = self.sensor.info().clone();
        self.emit_event(
            &Reading::without_values(self.clock.now()),
            EventKind::Start {
                sensor: info.name,
                notes: info.notes,
            },
        );
        loop {
            let next = Instant::now() + interval;
            let (law, phase, asked) = {
                let orders = self.shared.orders();
                if orders.stop {
                    break;
                }
                (orders.law, orders.phase, orders.requested_phases)
            };
            if law != *self.controller.law() {
                let _ = self.controller.set_min_fraction(law.options().min_fraction);
            }
            let at = self.take_reading();
            let shared = Arc::clone(&self.shared);
            let mut orders = shared.orders();
            if orders.completed_phases < asked {
                shared.meter().enter(phase, at);
                self.follow.set_busy(phase != EnergyPhase::Idle);
                orders.completed_phases = asked;
                shared.changed.notify_all();
            }
            let waiting = |orders: &mut GovernorState| {
                !orders.stop && orders.completed_phases >= orders.requested_phases
            };
            let left = next.saturating_duration_since(Instant::now());
            drop(shared.changed.wait_timeout_while(orders, left, waiting));
        }
        self.follow.set_fraction(1.0);
        let end = Reading::without_values(self.clock.now());
        self.emit_event(&end, EventKind::Stop);
    }

    fn take_reading(&mut self) -> Duration {
        let (reading, decision, error) = match self.sensor.read() {
            Ok(reading) => {
                self.shared.meter().push(&reading);
                (reading, self.controller.apply_reading(&reading), None)
            }
            Err(error) => {
                let none = Reading::without_values(self.clock.now());
                (none, self.controller.apply_reading(&none), Some(error))
            }
        };
        let before = self.follow.fraction();
        if !self.shared.orders().stop {
            self.follow.set_fraction(decision.fraction);
            self.report(&reading, &decision, before, error.as_ref());
        }
        reading.time
    }

    fn report(
        &mut self,
        reading: &Reading,
        decision: &Decision,
        before: f64,
        error: Option<&LiveError>,
    ) {
        let senses = [
            (Quantity::Temperature, decision.temperature),
            (Quantity::Power, decision.power),
        ];
        let those = |wanted: ReadingStatus| -> Vec<Quantity> {
            let found = senses.iter().filter(|(_, sense)| *sense == wanted);
            found.map(|(quantity, _)| *quantity).collect()
        };
        let (lost, back) = (those(ReadingStatus::Lost), those(ReadingStatus::Restored));
        if !lost.is_empty() {
            let reason = error.map_or_else(
                || describe_implausible_values(reading, &lost),
                ToString::to_string,
            );
            let first = !std::mem::replace(&mut self.was_lost, true);
            self.emit_event(
                reading,
                EventKind::Lost {
                    quantities: lost,
                    reason,
                    first,
                },
            );
        }
        if !back.is_empty() {
            self.emit_event(reading, EventKind::Back { quantities: back });
        }
        if decision.fraction != before {
            self.emit_event(
                reading,
                EventKind::Change {
                    why: decision.reason,
                },
            );
        }
        if decision.limit_exceeded && !self.beyond {
            let first = !std::mem::replace(&mut self.was_beyond, true);
            self.emit_event(reading, EventKind::Beyond { first });
        }
        self.beyond = decision.limit_exceeded;
    }

    fn emit_event(&mut self, reading: &Reading, what: EventKind) {
        let unix = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        (self.on_event)(&Event {
            at: reading.time.as_secs_f64(),
            unix: unix.as_secs_f64(),
            temperature: reading.temperature,
            power: reading.power,
            fraction: self.follow.fraction(),
            what,
        });
    }
}

fn describe_implausible_values(reading: &Reading, lost: &[Quantity]) -> String {
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
