//! The order of a model, from what calibration saw.

use htc_formats::model::{HyperParameters, Site};

use super::{OfLayer, Order};
use crate::calibrate::{Calibration, Place};
use crate::event::{Cancelled, Watch};

/// The sites that read the residual stream.
const OF_STREAM: [Site; 2] = [Site::Attention, Site::Ffn];

impl Order {
    /// The order in which feedback works best: the inputs with the largest mean square first. Of the stream,
    /// that is the mean over all that read it, each in units of its own mean; of values, the sum over the query
    /// heads that share them. Of inputs that are alike the first stays first.
    ///
    /// # Errors
    /// Where an end is asked for.
    pub fn of(
        hyper: &HyperParameters,
        calibration: &Calibration,
        watch: Watch,
    ) -> Result<Order, Cancelled> {
        let energies = |layer, site| calibration.inputs(Place::Site { layer, site }).diagonal();
        let mut stream = vec![0.0; hyper.width];
        let mut layers = Vec::with_capacity(hyper.layers);
        for layer in 0..hyper.layers {
            watch.check()?;
            for site in OF_STREAM {
                add_share(&mut stream, &energies(layer, site));
            }
            layers.push(OfLayer::of(
                hyper,
                &energies(layer, Site::FfnHidden),
                &energies(layer, Site::AttentionOutput),
            ));
        }
        add_share(&mut stream, &calibration.inputs(Place::Head).diagonal());
        Ok(Order {
            stream: decreasing(&stream),
            layers,
        })
    }
}

impl OfLayer {
    /// By the mean squares of the hidden units and of what O reads.
    pub(super) fn of(hyper: &HyperParameters, hidden: &[f64], heads: &[f64]) -> OfLayer {
        let size = hyper.head_size.max(1);
        let group = hyper.heads / hyper.kv_heads.max(1);
        let mut values = Vec::with_capacity(hyper.kv_heads * size);
        let mut read = Vec::with_capacity(hyper.heads * size);
        for (kv_head, of_group) in heads.chunks_exact((group * size).max(1)).enumerate() {
            let mut sums = vec![0.0; size];
            for of_head in of_group.chunks_exact(size) {
                sums.iter_mut().zip(of_head).for_each(|(sum, x)| *sum += x);
            }
            let within = decreasing(&sums);
            let places = |first: usize| within.iter().map(move |&at| first as u32 + at);
            values.extend(places(kv_head * size));
            for head in kv_head * group..(kv_head + 1) * group {
                read.extend(places(head * size));
            }
        }
        OfLayer {
            hidden: decreasing(hidden),
            values,
            heads: read,
        }
    }
}

/// Adds numbers in units of their mean.
fn add_share(sums: &mut [f64], numbers: &[f64]) {
    let mean = numbers.iter().sum::<f64>() / numbers.len().max(1) as f64;
    if mean > 0.0 {
        let pairs = sums.iter_mut().zip(numbers);
        pairs.for_each(|(sum, number)| *sum += number / mean);
    }
}

/// The places of numbers, the largest first.
fn decreasing(numbers: &[f64]) -> Vec<u32> {
    let mut places: Vec<u32> = (0..numbers.len() as u32).collect();
    places.sort_by(|&a, &b| {
        let (a, b) = (a as usize, b as usize);
        numbers[b].total_cmp(&numbers[a]).then(a.cmp(&b))
    });
    places
}
