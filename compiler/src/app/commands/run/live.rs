//! Control of the active fraction by temperature and power of the device.

use std::sync::Arc;

use htc_loader::dial::ActiveFraction;
use htc_loader::live::{
    ControlLaw, ControlLawOptions, Energy, EnergyPhase, Event, EventsFile, Governor,
    GovernorOptions, GpuSelector, SensorSpec, SharedFraction, open_sensor,
};
use htc_loader::{Backend, Session};

use super::super::Failure;
use crate::app::cli::LiveArgs;

/// A model must support such steps.
const MIN_FRACTION_STEP: f64 = 0.99;

pub(super) struct DeviceMonitor {
    governor: Governor,
    limited: bool,
}

impl DeviceMonitor {
    /// Starts monitoring if requested; `session` uses at most the fraction `most` of its weights,
    /// on this GPU, if any. `None`, with a warning, if the NVML or hwmon sensor does not open.
    pub fn start<B: Backend>(
        args: &LiveArgs,
        session: &mut Session<B>,
        most: ActiveFraction,
        gpu: Option<String>,
    ) -> Result<Option<DeviceMonitor>, Failure> {
        if !args.is_requested() {
            return Ok(None);
        }
        let limited = args.thermal.is_some() || args.power_cap.is_some();
        let least = session.model().dial().smallest_fraction() / most.get();
        if limited && least > MIN_FRACTION_STEP {
            if session.model().dial().smallest_fraction() < MIN_FRACTION_STEP {
                say!(
                    "htc: warning: --fraction leaves out all that could be, so that heat and power change nothing; ask for more \
                     with it"
                )
            } else {
                say!(
                    "htc: warning: the model has nothing that could be left out, so that heat and power change nothing; \
                     compile it with --planes 2, or to factors"
                )
            }
        }
        let mut options = ControlLawOptions {
            thermal: args.thermal.is_some(),
            ..ControlLawOptions::default()
        };
        if let Some(thresholds) = args.thermal {
            [options.low_celsius, options.high_celsius] = thresholds;
        }
        options.power_cap = args.power_cap;
        options.min_fraction = if limited {
            options.min_fraction.max(least).min(1.0)
        } else {
            // Monitoring alone limits nothing.
            1.0
        };
        let law = ControlLaw::new(options)?;
        let spec = match (&args.sensor, gpu) {
            (Some(spec), _) => spec.clone(),
            (None, Some(gpu)) => SensorSpec::Nvml(GpuSelector::Uuid(gpu)),
            (None, None) => SensorSpec::Hwmon,
        };
        let follow = SharedFraction::new();
        let sensor = match (open_sensor(&spec, &follow), &spec) {
            (Ok(sensor), _) => sensor,
            (Err(error), SensorSpec::Nvml(_) | SensorSpec::Hwmon) => {
                say!("htc: warning: {error}; nothing is followed");
                return Ok(None);
            }
            (Err(error), _) => return Err(error.into()),
        };
        let file = args.events.as_deref();
        let file = file
            .map(|path| EventsFile::create(path, false))
            .transpose()?;
        let mut file = file;
        let governor = Governor::start(
            sensor,
            law,
            GovernorOptions::default().with_speed(spec.speed()),
            &follow,
            move |event| {
                // Relative to all weight bytes.
                let fraction = event.fraction * most.get();
                let event = &Event {
                    fraction,
                    ..event.clone()
                };
                if let Some(warning) = event.warning() {
                    say!("htc: warning: {warning}");
                }
                if let Some(Err(error)) = file.as_mut().map(|file| file.write(event)) {
                    say!("htc: warning: {error}");
                }
            },
        )?;
        if limited {
            let following = session.follow_with(Arc::clone(&follow), most);
            following.map_err(|error| Failure::Monitoring(error.to_string()))?;
        }
        // So that it applies to the first token.
        if let Err(error) = governor.enter_phase(EnergyPhase::Work) {
            say!("htc: warning: {error}; nothing is followed");
            return Ok(None);
        }
        Ok(Some(DeviceMonitor { governor, limited }))
    }

    pub fn limits(&self) -> bool {
        self.limited
    }

    /// Ends monitoring and returns the energy, if known. A failed sensor does not affect the text.
    pub fn finish(self) -> Option<Energy> {
        let energy = self.governor.enter_phase(EnergyPhase::Other);
        match energy.and_then(|()| self.governor.stop()) {
            Ok(energy) => energy,
            Err(error) => {
                say!("htc: warning: {error}; what was drawn is not known");
                None
            }
        }
    }
}

pub(super) fn describe_energy(energy: &Energy, tokens: u64) -> String {
    let per_joule = match energy.tokens_per_joule(tokens) {
        Some(number) => format!(", {number:.3} tokens/J"),
        None => String::new(),
    };
    let beyond_idle = match energy.net_joules() {
        Some(joules) => format!(" ({joules:.1} J beyond what it idles at)"),
        None => String::new(),
    };
    let missed = if energy.missed > 0.5 {
        format!("; no reading of {:.1} s", energy.missed)
    } else {
        String::new()
    };
    format!(
        "energy: {:.1} J in {:.1} s{per_joule}{beyond_idle}{missed}",
        energy.joules, energy.seconds
    )
}
