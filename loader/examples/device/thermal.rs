//! Decoding under thermal control.

use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use htc_formats::source::ModelFile;
use htc_loader::Session;
use htc_loader::dial::ActiveFraction;
use htc_loader::live::{
    ControlLaw, ControlLawOptions, EnergyPhase, Governor, GovernorOptions, SensorInfo,
    SharedFraction,
};
use htc_loader::live::{LiveError, Reading, Sensor, SensorSpec, open_sensor};
use serde_json::{Value, json};

use super::measure::{LOGITS_REQUEST, energy_per_token, load_timed, tokens};
use super::on::{BenchmarkExecutor, Outcome, Task};

const CONTEXT: usize = 512;

pub struct ThermalTask {
    pub file: ModelFile,
    pub sensor: SensorSpec,
    pub seconds: f64,
    /// Temperature range of the control law in °C; by default from two to twenty degrees above the
    /// first reading, so that a cool device is controlled, too.
    pub range: Option<[f64; 2]>,
}

struct ReadingRecorder {
    sensor: Box<dyn Sensor>,
    readings: Arc<Mutex<Vec<Reading>>>,
}

impl Sensor for ReadingRecorder {
    fn info(&self) -> &SensorInfo {
        self.sensor.info()
    }

    fn read(&mut self) -> Result<Reading, LiveError> {
        let reading = self.sensor.read()?;
        let mut kept = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(reading);
        Ok(reading)
    }
}

impl Task for ThermalTask {
    fn run<M: BenchmarkExecutor>(self, on: &M) -> Outcome<Value> {
        let (model, _) = load_timed(on, self.file, CONTEXT)?;
        let mut session = Session::new(Arc::clone(&model), on.backend(), CONTEXT)?;
        let follow = SharedFraction::new();
        let mut sensor = match open_sensor(&self.sensor, &follow) {
            Ok(sensor) => sensor,
            Err(error) => return Ok(json!({ "missing": error.to_string() })),
        };
        let first = sensor.read()?.plausible_temperature();
        let [low, high] = match (self.range, first) {
            (Some(range), _) => range,
            (None, Some(first)) => [first + 2.0, first + 20.0],
            (None, None) => return Ok(json!({ "missing": "the sensor knows no temperature" })),
        };
        let least = model.dial().smallest_fraction().max(0.25);
        let law = ControlLaw::new(ControlLawOptions {
            low_celsius: low,
            high_celsius: high,
            min_fraction: least,
            ..ControlLawOptions::default()
        })?;
        let options = GovernorOptions::default().with_speed(self.sensor.speed());
        let readings = Arc::new(Mutex::new(Vec::new()));
        let sensor = Box::new(ReadingRecorder {
            sensor,
            readings: Arc::clone(&readings),
        });
        let governor = Governor::start(sensor, law, options, &follow, |_| ())?;
        session.follow_with(Arc::clone(&follow), ActiveFraction::FULL)?;

        let all = tokens(model.hyper().vocabulary, CONTEXT);
        let (mut course, mut count, mut of_second) = (Vec::new(), 0_u64, 0_u64);
        governor.enter_phase(EnergyPhase::Work)?;
        let started = Instant::now();
        loop {
            if session.position() >= CONTEXT {
                session.reset();
            }
            session.follow()?;
            black_box(session.step_for(&[all[session.position()]], LOGITS_REQUEST)?);
            (count, of_second) = (count + 1, of_second + 1);
            let passed = started.elapsed().as_secs_f64();
            if passed >= (course.len() + 1) as f64 {
                course.push(json!([of_second, follow.fraction()]));
                of_second = 0;
            }
            if passed >= self.seconds {
                break;
            }
        }
        governor.enter_phase(EnergyPhase::Other)?;
        let seconds = started.elapsed().as_secs_f64();
        let energy = energy_per_token(governor.stop()?, count);
        let readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
        let warmest = readings.iter().filter_map(Reading::plausible_temperature);
        Ok(json!({
            "device": on.device(),
            "range": [low, high],
            "first": first,
            "warmest": warmest.reduce(f64::max),
            "readings": readings.len(),
            "fractions": session.fractions(),
            "seconds": seconds,
            "tokens": count,
            "tokens_per_second": count as f64 / seconds,
            "course": course,
            "energy": energy,
        }))
    }
}
