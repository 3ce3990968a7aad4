//! Channel permutation from the weights and calibration of a model.

use htc_formats::model::{ActivationPoint, BlockInput, BlockSpec, HyperParameters, Role};
use htc_formats::source::ModelFile;

use super::{ChannelPermutation, LayerPermutation, MakeError};
use crate::calibrate::{CalibratedInput, Calibration};
use crate::event::{Progress, Task};

const ROWS: usize = 64;

impl ChannelPermutation {
    /// Computes the permutation: inputs sorted by their contribution to the outputs, `E[x_j²]
    /// ‖w_j‖²` for input `j` and its column `w_j`, largest first. Matrices that read the stream
    /// have equal weight, experts by their shares of the positions; value channels are summed over
    /// their query heads.
    ///
    /// The result does not depend on the number of threads.
    ///
    /// # Errors
    /// [`MakeError`].
    pub fn compute(
        source: &ModelFile,
        calibration: &Calibration,
        threads: usize,
        watch: Progress,
    ) -> Result<ChannelPermutation, MakeError> {
        let (hyper, spec) = (&source.hyper, source.spec());
        let mut stream = vec![0.0; hyper.width];
        watch.begin(Task::ChannelPermutation, hyper.layers);
        let found = watch.run_steps(
            threads,
            spec.blocks.len(),
            |layer| format!("order of layer {layer}"),
            |layer| {
                contributions(source, calibration, layer, &spec.blocks[layer])
                    .map_err(MakeError::with_source_path(source))
            },
        )?;
        let (of_layers, layers): (Vec<Vec<f64>>, _) = found.into_iter().unzip();
        of_layers.iter().for_each(|part| add(&mut stream, part));
        let head = match source.tensor(Role::Output) {
            Some(_) => Role::Output,
            None => Role::TokenEmbedding,
        };
        let read = calibration.inputs(CalibratedInput::Head).diagonal();
        let energies = column_energies(source, head);
        let energies = energies.map_err(MakeError::with_source_path(source))?;
        add(&mut stream, &divide_by_mean(product(&read, &energies)));
        Ok(ChannelPermutation {
            stream: indices_by_size(&stream),
            layers,
        })
    }
}

/// Returns the contributions of the stream's channels, and the permutation of the others.
fn contributions(
    source: &ModelFile,
    calibration: &Calibration,
    layer: usize,
    block: &BlockSpec,
) -> Result<(Vec<f64>, LayerPermutation), MakeError> {
    let width = source.hyper.width;
    let [mut attention, mut ffn] = [vec![0.0; width], vec![0.0; width]];
    let (mut hidden, mut heads) = (Vec::new(), Vec::new());
    for BlockInput { point: site, .. } in block.inputs() {
        let moment = calibration.inputs(CalibratedInput::Site { layer, site });
        let read = moment.diagonal();
        let mut sum = vec![0.0; read.len()];
        for projection in block.projections().filter(|p| p.kind.input() == site) {
            let weights = column_energies(source, projection.matrix().weight())?;
            add(&mut sum, &divide_by_mean(weights));
        }
        let mut found = product(&read, &sum);
        match site {
            ActivationPoint::Attention => add(&mut attention, &found),
            ActivationPoint::Ffn => add(&mut ffn, &found),
            ActivationPoint::ExpertInput(_) => {
                let share = moment.count as f64 / calibration.tokens().max(1) as f64;
                found.iter_mut().for_each(|number| *number *= share);
                add(&mut ffn, &found);
            }
            ActivationPoint::AttentionOutput => heads = found,
            ActivationPoint::FfnHidden | ActivationPoint::ExpertHidden(_) => hidden.push(found),
        }
    }
    let mut stream = divide_by_mean(attention);
    add(&mut stream, &divide_by_mean(ffn));
    let permutation = LayerPermutation::from_contributions(&source.hyper, &hidden, &heads);
    Ok((stream, permutation))
}

/// Non-finite values are reported by the coder.
fn column_energies(source: &ModelFile, role: Role) -> Result<Vec<f64>, MakeError> {
    let tensor = source.tensor(role).ok_or(MakeError::Missing(role))?;
    let mut sums = vec![0.0; tensor.cols];
    let mut values = Vec::new();
    for first in (0..tensor.rows).step_by(ROWS) {
        let rows = first..tensor.rows.min(first + ROWS);
        values.resize(rows.len() * tensor.cols, 0.0);
        let decoded = source.decode_rows(tensor, rows, &mut values);
        decoded.map_err(|error| MakeError::of_tensor(&tensor.name, error))?;
        for row in values.chunks_exact(tensor.cols.max(1)) {
            let squares = row.iter().map(|&x| f64::from(x) * f64::from(x));
            sums.iter_mut().zip(squares).for_each(|(sum, x)| *sum += x);
        }
    }
    Ok(sums)
}

impl LayerPermutation {
    pub(super) fn from_contributions(
        hyper: &HyperParameters,
        hidden: &[Vec<f64>],
        heads: &[f64],
    ) -> LayerPermutation {
        let size = hyper.head_size.max(1);
        let group = hyper.heads / hyper.kv_heads.max(1);
        let mut values = Vec::with_capacity(hyper.kv_heads * size);
        let mut read = Vec::with_capacity(hyper.heads * size);
        for (kv_head, of_group) in heads.chunks_exact((group * size).max(1)).enumerate() {
            let mut sums = vec![0.0; size];
            of_group
                .chunks_exact(size)
                .for_each(|of_head| add(&mut sums, of_head));
            let within = indices_by_size(&sums);
            let places = |first: usize| within.iter().map(move |&at| first as u32 + at);
            values.extend(places(kv_head * size));
            for head in kv_head * group..(kv_head + 1) * group {
                read.extend(places(head * size));
            }
        }
        LayerPermutation {
            hidden: hidden.iter().map(|of| indices_by_size(of)).collect(),
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

fn divide_by_mean(mut numbers: Vec<f64>) -> Vec<f64> {
    let mean = numbers.iter().sum::<f64>() / numbers.len().max(1) as f64;
    if mean > 0.0 {
        numbers.iter_mut().for_each(|number| *number /= mean);
    }
    numbers
}

fn indices_by_size(numbers: &[f64]) -> Vec<u32> {
    let mut places: Vec<u32> = (0..numbers.len() as u32).collect();
    places.sort_by(|&a, &b| {
        let (x, y) = (numbers[a as usize], numbers[b as usize]);
        y.total_cmp(&x).then(a.cmp(&b))
    });
    places
}
