//! Options of the weight treatment, shared by `htc plan` and `htc compile`.

use clap::Args;

use super::heading;
use crate::request::{BiasArg, GaugeKind, ShrinkageArg, SinkProtection, TreatmentRequest};

/// Which errors count, what stays exact, and whether biases correct.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = heading::METHOD)]
pub struct TreatmentArgs {
    /// Which errors count: none, all alike; axiom, in coordinates where the weights truncate best;
    /// activation, by how much each input channel is excited; whiten, those of the outputs [default: with
    /// --calibration the one that measures best on held-out text, else none]
    #[arg(long, hide_short_help = true, value_name = "G")]
    pub gauge: Option<GaugeKind>,
    /// What q, k, v, gate and up must not lose: append, the direction of a sequence's first position;
    /// channels:T, the T strongest input channels [default: append with --calibration, else off]
    #[arg(long, hide_short_help = true, value_name = "append|channels:T|off")]
    pub sink: Option<SinkProtection>,
    /// Put back as a bias what factors lose on the mean input; auto, where that measures better on
    /// held-out text [default: auto with --calibration, else off]
    #[arg(long, hide_short_help = true, value_name = "auto|on|off")]
    pub bias: Option<BiasArg>,
    /// How far the second moment of whiten is shrunk towards all directions alike, from 0 to 1; auto, what
    /// measures best on held-out text, of the second text where there are several [default: 0.01]
    #[arg(
        long,
        hide_short_help = true,
        value_name = "auto|S",
        requires = "calibration",
        allow_negative_numbers = true
    )]
    pub shrinkage: Option<ShrinkageArg>,
    /// Take --gauge axiom even where it measures worse than none
    #[arg(long, hide_short_help = true, requires = "gauge")]
    pub keep_gauge: bool,
}

impl TreatmentArgs {
    /// Returns the requested treatment.
    pub fn request(&self) -> TreatmentRequest {
        TreatmentRequest {
            gauge: self.gauge,
            sink: self.sink,
            bias: self.bias,
            shrinkage: self.shrinkage,
        }
    }
}
