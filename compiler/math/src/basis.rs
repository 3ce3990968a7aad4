//! The basis shared by projections with the same input (global rank compression).

use faer::{Mat, MatRef};

use super::exempt::ExemptColumns;
use super::gauge::{Gauge, product};
use super::panels::Panels;
use super::sink::{Sink, SinkOutcome, append_direction};
use super::{Algebra, FactoriseError, Host, Weight, check_length, check_rank, sign_of_largest};

/// Smaller ones are rounding.
const RELATIVE_EIGENVALUE_FLOOR: f64 = 1e-14;

/// Weight of each projection in the shared basis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BasisWeighting {
    /// `1/‖W‖_F²`, under a gauge `1/‖W G‖_F²`: independent of scale.
    #[default]
    Normalised,
    /// 1, as in the literature: projections with large entries dominate.
    Equal,
}

/// Options of [`shared_basis_with`].
#[derive(Clone, Copy, Debug)]
pub struct BasisOptions<'a> {
    /// Weight of each projection.
    pub weighting: BasisWeighting,
    /// `G [d, d]`: the norm of the error.
    pub gauge: &'a Gauge,
    /// Input columns that stay exact, ascending. Each takes one of the `k` ranks.
    pub exempt: &'a [usize],
    /// Direction that the basis must cover.
    pub sink: Option<Sink<'a>>,
    /// Backend for products and decompositions.
    pub algebra: &'a dyn Algebra,
}

impl Default for BasisOptions<'_> {
    fn default() -> Self {
        BasisOptions {
            weighting: BasisWeighting::default(),
            gauge: &Gauge::None,
            exempt: &[],
            sink: None,
            algebra: &Host,
        }
    }
}

/// Basis shared by projections that read the same input of width `d`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedBasis {
    /// `Pᵀ`, row-major `[k, d]`: one basis vector per row. Rows are orthonormal, with a positive
    /// entry of largest magnitude.
    ///
    /// Under a gauge the rows of `Pᵀ G⁻¹`, normalised but not orthogonal. Exempt columns come
    /// first, as rows of the identity, then an uncovered sink direction.
    pub basis: Vec<f32>,
    /// Per projection `W̃ = W P`, row-major `[out, k]`. Under a gauge `W G P`, scaled by the
    /// lengths of the rows of `basis`.
    pub projected: Vec<Vec<f32>>,
    /// Decreasing eigenvalues of `K` over the columns that are not exempt.
    pub eigenvalues: Vec<f64>,
    /// Outcome of the sink direction, if given.
    pub sink: Option<SinkOutcome>,
}

/// Computes the `k` leading eigenvectors `P` of `K = Σ w_i W_iᵀ W_i [d, d]` and the projected
/// weights: `P` minimises `Σ w_i ‖W_i − W_i P Pᵀ‖_F²`.
///
/// # Errors
/// Weights with different inputs, `k` outside `1..=d`, numbers that are not finite or exceed
/// float32.
pub fn shared_basis(
    weights: &[Weight<'_>],
    k: usize,
    weighting: BasisWeighting,
) -> Result<SharedBasis, FactoriseError> {
    let options = BasisOptions {
        weighting,
        ..BasisOptions::default()
    };
    shared_basis_with(weights, k, &options)
}

/// Computes [`shared_basis`] under a gauge, with exempt columns and a sink direction.
///
/// With a gauge `G` every weight becomes `W_i G P · Pᵀ G⁻¹`, which minimises `Σ w_i ‖(W_i − Ŵ_i)
/// G‖_F²`. If the basis covers less of the sink direction than the threshold, that direction
/// becomes the first component: `Ŵ_i ŝ = W_i ŝ` at every rank.
///
/// # Errors
/// Those of [`shared_basis`], a gauge or a direction of another width, a second moment with
/// negative eigenvalues, invalid exempt columns or more than `k`.
pub fn shared_basis_with(
    weights: &[Weight<'_>],
    k: usize,
    options: &BasisOptions<'_>,
) -> Result<SharedBasis, FactoriseError> {
    let d = check(weights, k)?;
    options.gauge.check(d)?;
    if let Some(sink) = options.sink {
        check_length(d, sink.direction.len())?;
    }
    if options.exempt.is_empty() {
        project(weights, k, options)
    } else {
        project_with_exempt(weights, d, k, options)
    }
}

fn project(
    weights: &[Weight<'_>],
    k: usize,
    options: &BasisOptions<'_>,
) -> Result<SharedBasis, FactoriseError> {
    let (gauge, algebra) = (options.gauge, options.algebra);
    let gram = shared_gram(weights, options.weighting, gauge, algebra)?;
    let of_sink = options.sink.map(|sink| (sink, gram.clone()));
    let (mut p, eigenvalues) = leading_eigenvectors(gram, k, options.weighting, gauge, algebra)?;
    let sink = match of_sink {
        None => None,
        Some((sink, gram)) => Some(cover_sink(&mut p, sink, gauge, gram, algebra)?),
    };
    let (mut read, mut write) = (p.clone(), p);
    if !matches!(gauge, Gauge::None) {
        read = gauge.apply_inverse(read, algebra)?;
        write = gauge.apply(write, algebra)?;
    }
    for (read, write) in read.col_iter_mut().zip(write.col_iter_mut()) {
        let length = match gauge {
            Gauge::None => 1.0,
            _ => read.norm_l2(),
        };
        let length = length * sign_of_largest(read.as_ref().iter().map(|&v| v as f32));
        if length != 1.0 {
            read.iter_mut().for_each(|v| *v /= length);
            write.iter_mut().for_each(|v| *v *= length);
        }
    }
    let projected = weights
        .iter()
        .enumerate()
        .map(|(index, &weight)| projected(index, weight, write.as_ref(), algebra))
        .collect::<Result<_, _>>()?;
    Ok(SharedBasis {
        basis: read
            .col_iter()
            .flat_map(|column| column.iter().map(|&v| v as f32))
            .collect(),
        projected,
        eigenvalues,
        sink,
    })
}

fn projected(
    index: usize,
    weight: Weight<'_>,
    x: MatRef<'_, f64>,
    algebra: &dyn Algebra,
) -> Result<Vec<f32>, FactoriseError> {
    let mut rows = Vec::with_capacity(weight.rows * x.ncols());
    Panels::new(weight, algebra).times(x, |_, panel| {
        for row in panel.row_iter() {
            rows.extend(row.iter().map(|&v| v as f32));
        }
    })?;
    if rows.iter().any(|v| !v.is_finite()) {
        return Err(FactoriseError::Overflow { index });
    }
    Ok(rows)
}

/// Makes an uncovered `G⁻¹ ŝ` the first vector of `p [d, k]`, followed by the leading eigenvectors
/// of `K` deflated by it.
fn cover_sink(
    p: &mut Mat<f64>,
    sink: Sink<'_>,
    gauge: &Gauge,
    mut gram: Mat<f64>,
    algebra: &dyn Algebra,
) -> Result<SinkOutcome, FactoriseError> {
    let (d, k) = p.shape();
    let direction = gauge.apply_inverse(Mat::from_fn(d, 1, |i, _| sink.direction[i]), algebra)?;
    let direction: Vec<f64> = direction.col(0).iter().copied().collect();
    let mut rows: Vec<f64> = p.col_iter().flat_map(|c| c.iter().copied()).collect();
    let (coverage, missed) = append_direction(&mut rows, &direction, sink.threshold)?;
    if missed {
        let mut first = Vec::new();
        append_direction(&mut first, &direction, f64::INFINITY)?;
        deflate(&mut gram, &first);
        for (i, value) in first.iter().enumerate() {
            p[(i, 0)] = *value;
        }
        if k > 1 {
            let others = algebra.eigen(gram, k - 1)?.vectors;
            p.as_mut().subcols_mut(1, k - 1).copy_from(&others);
        }
    }
    Ok(SinkOutcome {
        coverage,
        appended: missed,
    })
}

/// Computes `(1 − s sᵀ) K (1 − s sᵀ) − tr(K) s sᵀ` in the lower triangle, so that the unit vector
/// `s` becomes the last eigenvector.
fn deflate(gram: &mut Mat<f64>, s: &[f64]) {
    let d = s.len();
    let entry = |gram: &Mat<f64>, i: usize, j: usize| gram[(i.max(j), i.min(j))];
    let along: Vec<f64> = (0..d)
        .map(|i| (0..d).map(|j| entry(gram, i, j) * s[j]).sum())
        .collect();
    let twice: f64 = along.iter().zip(s).map(|(x, s)| x * s).sum();
    let trace: f64 = (0..d).map(|i| gram[(i, i)]).sum();
    for j in 0..d {
        for i in j..d {
            gram[(i, j)] += (twice - trace) * s[i] * s[j] - along[i] * s[j] - s[i] * along[j];
        }
    }
}

fn project_with_exempt(
    weights: &[Weight<'_>],
    d: usize,
    k: usize,
    options: &BasisOptions<'_>,
) -> Result<SharedBasis, FactoriseError> {
    let columns = ExemptColumns::new(options.exempt, d, k)?;
    let rest = if columns.rank == 0 {
        SharedBasis {
            projected: vec![Vec::new(); weights.len()],
            ..SharedBasis::default()
        }
    } else {
        let of_others = weights.iter().map(|&weight| columns.others_of(weight));
        let of_others: Vec<Vec<f32>> = of_others.collect();
        let reduced = weights.iter().zip(&of_others);
        let reduced = reduced.map(|(w, values)| Weight {
            rows: w.rows,
            cols: columns.others.len(),
            values,
        });
        let direction = columns.direction(options.sink);
        let options = BasisOptions {
            gauge: &options.gauge.restrict_to(&columns.others),
            exempt: &[],
            sink: options
                .sink
                .and_then(|sink| sink.along(direction.as_deref())),
            ..*options
        };
        project(&reduced.collect::<Vec<_>>(), columns.rank, &options)?
    };
    let projected = weights.iter().zip(&rest.projected);
    Ok(SharedBasis {
        basis: columns.input_factor(&rest.basis),
        projected: projected
            .map(|(&weight, rest)| columns.output_factor(weight, rest))
            .collect(),
        ..rest
    })
}

pub(super) fn check(weights: &[Weight<'_>], k: usize) -> Result<usize, FactoriseError> {
    let d = Weight::check_all(weights)?;
    check_rank(k, d)?;
    Ok(d)
}

/// Returns `P [d, k]`, unrounded, and all eigenvalues of `K`, decreasing.
pub(super) fn leading_eigenvectors(
    gram: Mat<f64>,
    k: usize,
    weighting: BasisWeighting,
    gauge: &Gauge,
    algebra: &dyn Algebra,
) -> Result<(Mat<f64>, Vec<f64>), FactoriseError> {
    let mut found = algebra.eigen(gram, k)?;
    let unit = match weighting {
        BasisWeighting::Normalised => 1.0,
        BasisWeighting::Equal => gauge.scale() * gauge.scale(),
    };
    found.values.iter_mut().for_each(|v| *v = v.max(0.0) * unit);
    Ok((found.vectors, found.values))
}

/// Returns the lower triangle of `K = Σ w_i G W_iᵀ W_i G`.
pub(super) fn shared_gram(
    weights: &[Weight<'_>],
    weighting: BasisWeighting,
    gauge: &Gauge,
    algebra: &dyn Algebra,
) -> Result<Mat<f64>, FactoriseError> {
    let d = weights.first().ok_or(FactoriseError::NoWeights)?.cols;
    let weight_of = |norm_squared: f64| match weighting {
        BasisWeighting::Normalised => 1.0 / norm_squared,
        BasisWeighting::Equal => 1.0,
    };
    if let Gauge::None = gauge {
        let mut gram = algebra.new_gram(d)?;
        for &weight in weights {
            let norm_squared = weight.norm_squared();
            if norm_squared > 0.0 {
                let scale = weight_of(norm_squared);
                Panels::new(weight, algebra).add_gram(scale, &mut *gram)?;
            }
        }
        return gram.finish();
    }
    let mut gram = Mat::<f64>::zeros(d, d);
    for &weight in weights {
        let panels = Panels::new(weight, algebra);
        let panels = match gauge {
            Gauge::None => panels,
            Gauge::Diagonal(g) => panels.scaled(None, Some(g.entries())),
            Gauge::Full(w) => panels.times_right(w.root(algebra)?),
        };
        let own = panels.gram()?;
        let norm_squared: f64 = (0..d).map(|i| own[(i, i)]).sum();
        if norm_squared > 0.0 {
            let scale = weight_of(norm_squared);
            for (sum, own) in gram.col_iter_mut().zip(own.col_iter()) {
                sum.iter_mut()
                    .zip(own.iter())
                    .for_each(|(s, o)| *s += scale * o);
            }
        }
    }
    Ok(gram)
}

/// Returns the square roots of all eigenvalues of the `K` of [`shared_basis`], decreasing.
pub fn shared_singular_values(
    weights: &[Weight<'_>],
    weighting: BasisWeighting,
    algebra: &dyn Algebra,
) -> Result<Vec<f64>, FactoriseError> {
    check(weights, 1)?;
    let gram = shared_gram(weights, weighting, &Gauge::None, algebra)?;
    let mut values = algebra.eigenvalues(gram)?;
    values.iter_mut().for_each(|v| *v = v.max(0.0).sqrt());
    Ok(values)
}

/// All components of a shared basis with their energies per projection.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedComponents {
    /// `Pᵀ`, row-major `[n, d]`, orthonormal; `n` is `d`, or the total number of outputs if
    /// smaller.
    pub basis: Vec<f64>,
    /// Per projection, `‖W p_j‖²` by component `j`: the error of rank `k` is the sum from `k` on.
    pub energies: Vec<Vec<f64>>,
}

/// Computes the basis of [`shared_basis`] at full rank, in float64.
pub fn shared_components(
    weights: &[Weight<'_>],
    weighting: BasisWeighting,
    algebra: &dyn Algebra,
) -> Result<SharedComponents, FactoriseError> {
    let d = check(weights, 1)?;
    let outs = weights.iter().map(|weight| weight.rows).sum::<usize>();
    let p = if outs < d {
        // K has rank `outs` at most.
        leading_from_row_gram(weights, outs, d, weighting, algebra)?
    } else {
        let gram = shared_gram(weights, weighting, &Gauge::None, algebra)?;
        leading_eigenvectors(gram, d, weighting, &Gauge::None, algebra)?.0
    };
    let energies = weights.iter().map(|&weight| {
        let mut energies = vec![0.0; p.ncols()];
        Panels::new(weight, algebra).times(p.as_ref(), |_, rows| {
            for (sum, column) in energies.iter_mut().zip(rows.col_iter()) {
                *sum += column.iter().map(|v| v * v).sum::<f64>();
            }
        })?;
        Ok(energies)
    });
    Ok(SharedComponents {
        energies: energies.collect::<Result<_, FactoriseError>>()?,
        basis: p.col_iter().flat_map(|c| c.iter().copied()).collect(),
    })
}

/// Computes `P [d, outs]` from the eigenvectors of `S Sᵀ`, for the stacked weighted weights `S
/// [outs, d]`.
fn leading_from_row_gram(
    weights: &[Weight<'_>],
    outs: usize,
    d: usize,
    weighting: BasisWeighting,
    algebra: &dyn Algebra,
) -> Result<Mat<f64>, FactoriseError> {
    let mut columns = Mat::<f64>::zeros(d, outs);
    let mut next = 0;
    for weight in weights {
        let scale = match weighting {
            BasisWeighting::Normalised => weight.norm_squared().sqrt(),
            BasisWeighting::Equal => 1.0,
        };
        for row in weight.values.chunks_exact(d) {
            let column = columns.as_mut().col_mut(next);
            for (to, &from) in column.iter_mut().zip(row) {
                *to = if scale > 0.0 {
                    f64::from(from) / scale
                } else {
                    0.0
                };
            }
            next += 1;
        }
    }
    let gram = product(columns.transpose(), columns.as_ref(), algebra)?;
    let found = algebra.eigen(gram, outs)?;
    let mut p = product(columns.as_ref(), found.vectors.as_ref(), algebra)?;
    let smallest = RELATIVE_EIGENVALUE_FLOOR * found.values.first().copied().unwrap_or_default();
    for (column, &value) in p.col_iter_mut().zip(&found.values) {
        let length = if value > smallest {
            value.sqrt()
        } else {
            f64::INFINITY
        };
        column.iter_mut().for_each(|v| *v /= length);
    }
    Ok(p)
}
