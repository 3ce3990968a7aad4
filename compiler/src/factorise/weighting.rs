//! Which errors of a slot count: the gauge of every site, from what calibration saw there.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use htc_formats::model::Site;

use super::{DEFAULT_EXPONENT, DEFAULT_SHRINKAGE, FactoriseError, Gauge, SecondMoment};
use crate::calibrate::Calibration;

/// A kind of gauge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GaugeKind {
    /// Every error of the weight counts the same.
    #[default]
    None,
    /// By the root mean square of each input channel.
    Activation,
    /// By the second moment of the input: the error of the output counts.
    Whiten,
}

impl GaugeKind {
    /// All kinds.
    pub const ALL: [GaugeKind; 3] = [GaugeKind::None, GaugeKind::Activation, GaugeKind::Whiten];

    /// Whether what it minimises says nothing of the model's output, so that only measuring shows
    /// what it is worth.
    pub const fn is_unproven(self) -> bool {
        false
    }

    /// The name used on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            GaugeKind::None => "none",
            GaugeKind::Activation => "activation",
            GaugeKind::Whiten => "whiten",
        }
    }
}

impl fmt::Display for GaugeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for GaugeKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = GaugeKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| "a gauge is none, activation or whiten".to_owned())
    }
}

/// Sites whose gauges are kept: those of a layer and of the next, where several threads work.
const KEPT: usize = 8;

/// The gauge of a site, made once by the thread that asks first.
type Made = Arc<OnceLock<Result<Arc<Gauge>, FactoriseError>>>;

/// The gauges of a model's sites.
#[derive(Debug, Default)]
pub struct Weighting<'a> {
    kind: GaugeKind,
    calibration: Option<&'a Calibration>,
    made: Mutex<Vec<((usize, Site), Made)>>,
}

impl<'a> Weighting<'a> {
    /// Gauges of a kind; without a calibration every one is [`Gauge::None`].
    pub fn new(kind: GaugeKind, calibration: Option<&'a Calibration>) -> Self {
        Weighting {
            kind,
            calibration,
            made: Mutex::default(),
        }
    }

    /// The second moment of what a site's slots read: its order, and the lower triangle of
    /// `[n, n]`.
    pub fn second_moment(&self, layer: usize, site: Site) -> Option<(usize, Vec<f64>)> {
        let moment = self.calibration?.layers[layer].site(site);
        Some((moment.mean.len(), moment.lower()))
    }

    /// The gauge of a site.
    ///
    /// # Errors
    /// What the gauge's constructor refuses.
    pub fn gauge(&self, layer: usize, site: Site) -> Result<Arc<Gauge>, FactoriseError> {
        let (kind, Some(calibration)) = (self.kind, self.calibration) else {
            return Ok(Arc::new(Gauge::None));
        };
        if kind == GaugeKind::None {
            return Ok(Arc::new(Gauge::None));
        }
        let made = {
            let mut all = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            match all.iter().find(|(key, _)| *key == (layer, site)) {
                Some((_, made)) => Arc::clone(made),
                None => {
                    if all.len() >= KEPT {
                        all.remove(0);
                    }
                    let made = Made::default();
                    all.push(((layer, site), Arc::clone(&made)));
                    made
                }
            }
        };
        // Outside the lock: other sites' gauges are made meanwhile.
        made.get_or_init(|| {
            let moment = calibration.layers[layer].site(site);
            let gauge = match kind {
                GaugeKind::None => Gauge::None,
                GaugeKind::Activation => Gauge::activation(&moment.diagonal(), DEFAULT_EXPONENT)?,
                GaugeKind::Whiten => {
                    let order = moment.mean.len();
                    let values = &moment.lower();
                    Gauge::whiten(SecondMoment { order, values }, DEFAULT_SHRINKAGE)?
                }
            };
            Ok(Arc::new(gauge))
        })
        .clone()
    }
}
