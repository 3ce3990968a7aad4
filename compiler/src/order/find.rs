//! Channel permutation from the weights and calibration of a model.

use htc_formats::block::{self, BlockError};
use htc_formats::model::{HyperParameters, Part, Role, Site, Slot};
use htc_formats::source::ModelFile;
use thiserror::Error;

use super::{OfLayer, Order};
use crate::calibrate::{Calibration, Place};
use crate::event::{Cancelled, Event, Measurement, Watch};
use crate::system::ordered;

const ROWS: usize = 64;

/// Error returned when no permutation can be computed.
#[derive(Debug, Error)]
pub enum FindError {
    /// A matrix is missing in the source.
    #[error("tensor {0} is missing from the source")]
    Missing(Role),
    /// The bytes of a matrix do not decode.
    #[error("tensor {tensor}: {source}")]
    Block {
        /// Name in the source.
        tensor: String,
        /// Codec error.
        source: BlockError,
    },
    /// No thread can be started.
    #[error("no thread can be started: {0}")]
    Thread(#[from] std::io::Error),
    /// Cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

struct Contributions {
    stream: Vec<f64>,
    hidden: Vec<f64>,
    heads: Vec<f64>,
}

impl Order {
    /// Computes the permutation: inputs sorted by their contribution to the outputs, `E[x_j²]
    /// ‖w_j‖²` for input `j` and its column `w_j`, largest first. Matrices that read the stream
    /// have equal weight; value channels are summed over their query heads.
    ///
    /// The result does not depend on the number of threads.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn of(
        source: &ModelFile,
        calibration: &Calibration,
        threads: usize,
        watch: Watch,
    ) -> Result<Order, FindError> {
        let hyper = &source.hyper;
        let mut stream = vec![0.0; hyper.width];
        let mut layers = Vec::with_capacity(hyper.layers);
        watch.tell(Event::Measuring(Measurement::Order, hyper.layers));
        ordered::for_each(
            threads,
            hyper.layers,
            hyper.layers,
            |layer| contributions(source, calibration, layer),
            |layer, found| {
                watch.done(&format!("order of layer {layer}"))?;
                add(&mut stream, &found.stream);
                layers.push(OfLayer::of(hyper, &found.hidden, &found.heads));
                Ok::<(), FindError>(())
            },
        )?;
        let head = match source.tensor(Role::Output) {
            Some(_) => Role::Output,
            None => Role::TokenEmbedding,
        };
        let read = calibration.inputs(Place::Head).diagonal();
        add(
            &mut stream,
            &shares(product(&read, &columns(source, head)?)),
        );
        Ok(Order {
            stream: decreasing(&stream),
            layers,
        })
    }
}

fn contributions(
    source: &ModelFile,
    calibration: &Calibration,
    layer: usize,
) -> Result<Contributions, FindError> {
    let part = Part::Weight;
    let of = |site: Site| -> Result<Vec<f64>, FindError> {
        let read = calibration.inputs(Place::Site { layer, site }).diagonal();
        let mut sum = vec![0.0; read.len()];
        for slot in Slot::ALL.into_iter().filter(|slot| slot.site() == site) {
            let weights = columns(source, Role::Linear { layer, slot, part })?;
            add(&mut sum, &shares(weights));
        }
        Ok(product(&read, &sum))
    };
    let mut stream = shares(of(Site::Attention)?);
    add(&mut stream, &shares(of(Site::Ffn)?));
    Ok(Contributions {
        stream,
        hidden: of(Site::FfnHidden)?,
        heads: of(Site::AttentionOutput)?,
    })
}

/// Non-finite values are reported by the coder.
fn columns(source: &ModelFile, role: Role) -> Result<Vec<f64>, FindError> {
    let tensor = source.tensor(role).ok_or(FindError::Missing(role))?;
    let row_bytes = tensor.dtype.row_bytes(tensor.cols).unwrap_or(0).max(1);
    let mut sums = vec![0.0; tensor.cols];
    let mut values = Vec::new();
    for bytes in source.bytes(tensor).chunks(ROWS * row_bytes) {
        values.resize(bytes.len() / row_bytes * tensor.cols, 0.0);
        block::decode(tensor.dtype, bytes, &mut values).map_err(|source| FindError::Block {
            tensor: tensor.name.clone(),
            source,
        })?;
        for row in values.chunks_exact(tensor.cols.max(1)) {
            let squares = row.iter().map(|&x| f64::from(x) * f64::from(x));
            sums.iter_mut().zip(squares).for_each(|(sum, x)| *sum += x);
        }
    }
    Ok(sums)
}

impl OfLayer {
    /// Sorts hidden units and the inputs of O by contribution.
    pub(super) fn of(hyper: &HyperParameters, hidden: &[f64], heads: &[f64]) -> OfLayer {
        let size = hyper.head_size.max(1);
        let group = hyper.heads / hyper.kv_heads.max(1);
        let mut values = Vec::with_capacity(hyper.kv_heads * size);
        let mut read = Vec::with_capacity(hyper.heads * size);
        for (kv_head, of_group) in heads.chunks_exact((group * size).max(1)).enumerate() {
            let mut sums = vec![0.0; size];
            of_group
                .chunks_exact(size)
                .for_each(|of_head| add(&mut sums, of_head));
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

fn add(sums: &mut [f64], numbers: &[f64]) {
    sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += x);
}

fn product(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

fn shares(mut numbers: Vec<f64>) -> Vec<f64> {
    let mean = numbers.iter().sum::<f64>() / numbers.len().max(1) as f64;
    if mean > 0.0 {
        numbers.iter_mut().for_each(|number| *number /= mean);
    }
    numbers
}

fn decreasing(numbers: &[f64]) -> Vec<u32> {
    let mut places: Vec<u32> = (0..numbers.len() as u32).collect();
    places.sort_by(|&a, &b| {
        let (x, y) = (numbers[a as usize], numbers[b as usize]);
        y.total_cmp(&x).then(a.cmp(&b))
    });
    places
}
