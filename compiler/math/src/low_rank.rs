//! Best approximation of one projection at a given rank (Eckart and Young 1936).

use faer::{Accum, Mat, MatRef};

use super::exempt::ExemptColumns;
use super::gauge::{Diagonal, Gauge, for_each_quadratic_block, product, scale_rows};
use super::panels::Panels;
use super::sink::{Coverage, Sink, SinkOutcome, coverage_of_parts};
use super::{
    Algebra, FactoriseError, Host, LeadingVectors, Weight, check_rank, dot, sign_of_largest,
};

/// Method by which [`low_rank`] computes the singular vectors of the smaller side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SvdMethod {
    /// Singular value decomposition of `W`: singular values are exact to about 1e-15 of the
    /// largest.
    Svd,
    /// Eigendecomposition of the smaller of `WᵀW` and `WWᵀ`: half the time or less. Singular values
    /// below about 1e-8 of the largest are noise, which float32 factors do not resolve.
    Gram,
    /// `GramAccumulator` from order 64 on, otherwise `Svd`.
    #[default]
    Auto,
}

const MIN_GRAM_ORDER: usize = 64;

/// Exponent `t` in `B = U Sᵗ`, `A = S^(1−t) Vᵀ`, which only affects the error after quantisation.
///
/// A row of `A` belongs to one component, so its scaling is free. A block in a row of `B` shares
/// one scale across components: with `t = 1` large components push small ones below the step, with
/// `t = 0` the step is too coarse for the large ones. On a small Llama the error of q8_0 is least
/// at ¼ to ½.
const B_EXPONENT: f64 = 0.25;

type FactorPair = (Vec<f32>, Vec<f32>);

/// Low-rank factors `W ≈ B A`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LowRank {
    /// `A = S^¾ Vᵀ`, row-major `[r, in]`, with a positive entry of largest magnitude per row. Under
    /// a gauge `S^¾ Vᵀ G⁻¹`. Exempt columns come first, then an uncovered sink direction.
    pub a: Vec<f32>,
    /// `B = U S^¼`, row-major `[out, r]`. Under a gauge `H⁻¹ U S^¼`.
    pub b: Vec<f32>,
    /// Singular values of `W`, decreasing; under a gauge of `H W G`, without exempt columns.
    pub singular_values: Vec<f64>,
    /// Outcome of the sink direction, if given.
    pub sink: Option<SinkOutcome>,
}

/// Options of [`low_rank_with`].
#[derive(Clone, Copy, Debug)]
pub struct LowRankOptions<'a> {
    /// Method for the singular vectors.
    pub method: SvdMethod,
    /// `G [in, in]`: the norm of the error over the inputs.
    pub input: &'a Gauge,
    /// Diagonal of `H [out, out]`, the norm over the outputs.
    pub output: Option<&'a Diagonal>,
    /// Input columns that stay exact, ascending. Each takes one of the `r` ranks.
    pub exempt: &'a [usize],
    /// Input direction that the factors must cover.
    pub sink: Option<Sink<'a>>,
    /// Backend for products and decompositions.
    pub algebra: &'a dyn Algebra,
}

impl Default for LowRankOptions<'_> {
    fn default() -> Self {
        LowRankOptions {
            method: SvdMethod::Auto,
            input: &Gauge::None,
            output: None,
            exempt: &[],
            sink: None,
            algebra: &Host,
        }
    }
}

/// Computes the best approximation of rank `r` in the Frobenius norm.
pub fn low_rank(weight: Weight<'_>, r: usize, path: SvdMethod) -> Result<LowRank, FactoriseError> {
    let options = LowRankOptions {
        method: path,
        ..LowRankOptions::default()
    };
    low_rank_with(weight, r, &options)
}

/// Computes the `B A` of rank `r` that minimises `‖H (W − B A) G‖_F`; its first `r'` components do
/// so at rank `r'`.
///
/// If the components cover less of the sink direction `ŝ` than the threshold, the first component
/// reproduces `W ŝ`: `B A ŝ = W ŝ` at every rank. Exempt columns come first, as components of a row
/// of the identity and the column itself.
///
/// # Errors
/// `r` outside `1..=min(out, in)`, numbers that are not finite, a gauge or a direction of another
/// width, a second moment with negative eigenvalues, factors that exceed float32, invalid exempt
/// columns or more than `r`.
pub fn low_rank_with(
    weight: Weight<'_>,
    r: usize,
    options: &LowRankOptions<'_>,
) -> Result<LowRank, FactoriseError> {
    let LowRankOptions {
        method: path,
        input,
        output,
        exempt,
        sink,
        algebra,
    } = *options;
    weight.check(0)?;
    input.check(weight.cols)?;
    if let Some(output) = output {
        output.check(weight.rows)?;
    }
    let sink = sink.map(|sink| sink.into_unit(weight.cols)).transpose()?;
    let order = weight.rows.min(weight.cols);
    check_rank(r, order)?;
    if !exempt.is_empty() {
        return low_rank_with_exempt(weight, r, options);
    }
    let gauges = Gauges { input, output };
    let gram = match path {
        SvdMethod::Svd => false,
        SvdMethod::Gram => true,
        SvdMethod::Auto => order >= MIN_GRAM_ORDER,
    };
    let LeadingVectors {
        mut values,
        vectors,
    } = if gram {
        let mut found = algebra.eigen(gauged_gram(weight, gauges, algebra)?, r)?;
        found.values.iter_mut().for_each(|v| *v = v.max(0.0).sqrt());
        found
    } else {
        algebra.right_singular_vectors(gauged_dense(weight, gauges, algebra)?, r)?
    };
    let (mut a, mut b) = factors(weight, vectors, &values, gauges, algebra)?;
    let sink = match sink {
        None => None,
        Some((unit, threshold)) => {
            let coverage = direction_coverage(&a, &values, &unit, input, algebra)?;
            let first = if coverage.norm < threshold && misses_direction(weight, &a, &b, &unit) {
                factors_with_direction(weight, r, &unit, options)?
            } else {
                None
            };
            let appended = first.is_some();
            if let Some(factors) = first {
                (a, b) = factors;
            }
            Some(SinkOutcome { coverage, appended })
        }
    };
    if a.iter().chain(&b).any(|v| !v.is_finite()) {
        return Err(FactoriseError::Overflow { index: 0 });
    }
    let scale = input.scale() * output.map_or(1.0, Diagonal::scale);
    values.iter_mut().for_each(|v| *v *= scale);
    Ok(LowRank {
        a,
        b,
        singular_values: values,
        sink,
    })
}

fn low_rank_with_exempt(
    weight: Weight<'_>,
    r: usize,
    options: &LowRankOptions<'_>,
) -> Result<LowRank, FactoriseError> {
    let columns = ExemptColumns::new(options.exempt, weight.cols, r)?;
    let rest = if columns.rank == 0 {
        LowRank::default()
    } else {
        let of_others = Weight {
            rows: weight.rows,
            cols: columns.others.len(),
            values: &columns.others_of(weight),
        };
        let direction = columns.direction(options.sink);
        let options = LowRankOptions {
            input: &options.input.restrict_to(&columns.others),
            exempt: &[],
            sink: options
                .sink
                .and_then(|sink| sink.along(direction.as_deref())),
            ..*options
        };
        low_rank_with(of_others, columns.rank, &options)?
    };
    Ok(LowRank {
        a: columns.input_factor(&rest.a),
        b: columns.output_factor(weight, &rest.b),
        ..rest
    })
}

/// Returns the coverage of `G⁻¹ ŝ` by the right singular vectors, `Vᵀ G⁻¹ = S^(t-1) A`.
fn direction_coverage(
    a: &[f32],
    values: &[f64],
    unit: &[f64],
    input: &Gauge,
    algebra: &dyn Algebra,
) -> Result<Coverage, FactoriseError> {
    let direction = input.apply_inverse(Mat::from_fn(unit.len(), 1, |i, _| unit[i]), algebra)?;
    let length = direction.norm_l2();
    let rows = a.chunks_exact(unit.len());
    let powers = singular_value_powers(&values[..rows.len()], B_EXPONENT - 1.0);
    let parts = rows
        .zip(powers)
        .map(|(row, power)| power * dot(row, unit) / length);
    Ok(coverage_of_parts(parts))
}

/// Returns true if `B A` and the weight differ on `unit` beyond rounding.
fn misses_direction(weight: Weight<'_>, a: &[f32], b: &[f32], unit: &[f64]) -> bool {
    let r = a.len() / weight.cols;
    let inner: Vec<f64> = a
        .chunks_exact(weight.cols)
        .map(|row| dot(row, unit))
        .collect();
    let (mut missed, mut exact) = (0.0, 0.0);
    for (row, b) in weight
        .values
        .chunks_exact(weight.cols)
        .zip(b.chunks_exact(r))
    {
        let whole = dot(row, unit);
        exact += whole * whole;
        missed += (whole - dot(b, &inner)).powi(2);
    }
    missed > f64::from(f32::EPSILON).powi(2) * exact
}

/// Computes factors whose first component reproduces the weight on `unit` while the others map it
/// to zero; `None` if `W ŝ = 0`.
///
/// The first is `u uᵀ H W` with `u ∝ H W ŝ`; the others are the best factors of `(1 − u uᵀ) H W`.
fn factors_with_direction(
    weight: Weight<'_>,
    r: usize,
    unit: &[f64],
    options: &LowRankOptions<'_>,
) -> Result<Option<FactorPair>, FactoriseError> {
    let n = weight.cols;
    let h = |o: usize| options.output.map_or(1.0, |h| h.entries()[o]);
    let along: Vec<f64> = weight
        .values
        .chunks_exact(n)
        .map(|row| dot(row, unit))
        .collect();
    let gauged = along.iter().enumerate().map(|(o, e)| (h(o) * e).powi(2));
    let length = gauged.sum::<f64>().sqrt();
    if length <= 0.0 {
        return Ok(None);
    }
    // The component as H⁻¹ u = W ŝ / ‖H W ŝ‖ and cᵀ = uᵀ H W; cᵀ ŝ = ‖H W ŝ‖.
    let mut c = vec![0.0; n];
    for (o, (e, row)) in along.iter().zip(weight.values.chunks_exact(n)).enumerate() {
        add(&mut c, h(o) * h(o) * e / length, row);
    }
    let rest: Vec<f32> = along
        .iter()
        .zip(weight.values.chunks_exact(n))
        .flat_map(|(e, row)| {
            let column = e / length;
            let pairs = row.iter().zip(&c);
            pairs.map(move |(&w, c)| (f64::from(w) - column * c) as f32)
        })
        .collect();
    let others = match r {
        1 => (Vec::new(), Vec::new()),
        _ => {
            let rest = Weight {
                values: &rest,
                ..weight
            };
            let options = LowRankOptions {
                sink: None,
                ..*options
            };
            let found = low_rank_with(rest, r - 1, &options)?;
            (found.a, found.b)
        }
    };
    Ok(Some(prepend_component(&along, &c, unit, others)))
}

/// Prepends a component along `c` that completes `along`, the output at `unit`, including the
/// rounding of the others.
fn prepend_component(along: &[f64], c: &[f64], unit: &[f64], (a, b): FactorPair) -> FactorPair {
    let (n, r) = (c.len(), a.len() / c.len() + 1);
    let inner: Vec<f64> = a.chunks_exact(n).map(|row| dot(row, unit)).collect();
    let part: f64 = c.iter().zip(unit).map(|(c, s)| c * s).sum();
    let rows = |o: usize| &b[o * (r - 1)..(o + 1) * (r - 1)];
    let missing = along.iter().enumerate();
    let column: Vec<f64> = missing
        .map(|(o, whole)| (whole - dot(rows(o), &inner)) / part)
        .collect();
    // Split as the others: ‖column of B‖ = s^t with s = ‖column‖ ‖c‖.
    let norm = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>().sqrt();
    let scale = (norm(&column) * norm(c)).powf(B_EXPONENT) / norm(&column);
    let mut first: Vec<f32> = c.iter().map(|c| (c / scale) as f32).collect();
    let sign = sign_of_largest(first.iter().copied());
    first.iter_mut().for_each(|v| *v *= sign as f32);
    first.extend(a);
    let mut columns = Vec::with_capacity(along.len() * r);
    for (o, value) in column.iter().enumerate() {
        columns.push((sign * scale * value) as f32);
        columns.extend_from_slice(rows(o));
    }
    (first, columns)
}

fn add(sum: &mut [f64], factor: f64, x: &[f32]) {
    for (sum, &x) in sum.iter_mut().zip(x) {
        *sum += factor * f64::from(x);
    }
}

/// Gauges of a weight: `G` of its inputs, and `H` of its outputs if any.
#[derive(Clone, Copy)]
pub(super) struct Gauges<'a> {
    pub(super) input: &'a Gauge,
    pub(super) output: Option<&'a Diagonal>,
}

/// Returns `H W G` or its transpose, whichever is tall, except for a full gauge on the left.
fn gauged_panels<'a>(
    weight: Weight<'a>,
    gauges: Gauges<'a>,
    algebra: &'a dyn Algebra,
) -> Result<Panels<'a>, FactoriseError> {
    let tall = Panels::tall(weight, algebra);
    let rows = gauges.output.map(Diagonal::entries);
    Ok(match gauges.input {
        Gauge::None => tall.scaled(rows, None),
        Gauge::Diagonal(g) => tall.scaled(rows, Some(g.entries())),
        Gauge::Full(_) if tall.transposed() => tall.scaled(rows, None),
        Gauge::Full(w) => tall.scaled(rows, None).times_right(w.root(algebra)?),
    })
}

/// Returns the lower triangle of the Gram matrix of the short side of `H W G`.
pub(super) fn gauged_gram(
    weight: Weight<'_>,
    gauges: Gauges<'_>,
    algebra: &dyn Algebra,
) -> Result<Mat<f64>, FactoriseError> {
    let tall = gauged_panels(weight, gauges, algebra)?;
    match gauges.input {
        Gauge::Full(w) if tall.transposed() => {
            let order = tall.cols();
            let mut gram = Mat::zeros(order, order);
            let t = tall.dense()?;
            for_each_quadratic_block(w.moment(), t.as_ref(), algebra, |start, block| {
                let rows = t.as_ref().subrows(start, block.nrows());
                algebra.multiply(gram.as_mut(), Accum::Add, rows.transpose(), block, 1.0)
            })?;
            for j in 0..order {
                for i in j..order {
                    gram[(i, j)] = 0.5 * (gram[(i, j)] + gram[(j, i)]);
                }
            }
            Ok(gram)
        }
        _ => tall.gram(),
    }
}

fn gauged_dense(
    weight: Weight<'_>,
    gauges: Gauges<'_>,
    algebra: &dyn Algebra,
) -> Result<Mat<f64>, FactoriseError> {
    let tall = gauged_panels(weight, gauges, algebra)?;
    match gauges.input {
        Gauge::Full(w) if tall.transposed() => {
            product(w.root(algebra)?, tall.dense()?.as_ref(), algebra)
        }
        _ => tall.dense(),
    }
}

/// Returns `A [r, in]` and `B [out, r]` from the singular vectors `x [short, r]` of the short side
/// of `H W G`.
fn factors(
    weight: Weight<'_>,
    x: Mat<f64>,
    values: &[f64],
    gauges: Gauges<'_>,
    algebra: &dyn Algebra,
) -> Result<FactorPair, FactoriseError> {
    let Gauges { input, output } = gauges;
    let r = x.ncols();
    let tall = Panels::tall(weight, algebra);
    let powers = |exponent: f64| singular_value_powers(&values[..r], exponent);
    if tall.transposed() {
        // x = U, and Vᵀ G⁻¹ = S⁻¹ Uᵀ H W: the rows of A = S^-t Uᵀ H W are the columns of WᵀHU.
        let (mut left, mut right) = (x.clone(), x);
        if let Some(output) = output {
            let h = output.entries();
            scale_rows(right.as_mut(), |i| h[i]);
            scale_rows(left.as_mut(), |i| 1.0 / h[i]);
        }
        let mut product = Mat::<f64>::zeros(tall.rows(), r);
        tall.times(right.as_ref(), |start, panel| {
            product
                .as_mut()
                .subrows_mut(start, panel.nrows())
                .copy_from(panel);
        })?;
        let mut a = columns(product.as_ref(), &powers(-B_EXPONENT));
        let mut on_b = powers(B_EXPONENT);
        fix_signs(&mut a, &mut on_b);
        Ok((a, rows(left.as_ref(), &on_b).collect()))
    } else {
        // x = V, and H⁻¹ U = W G V S⁻¹: B = W G V S^(t-1), A = S^(1-t) Vᵀ G⁻¹.
        let on_a = powers(1.0 - B_EXPONENT);
        let mut a = columns(input.apply_inverse(x.clone(), algebra)?.as_ref(), &on_a);
        let mut on_b = powers(B_EXPONENT - 1.0);
        fix_signs(&mut a, &mut on_b);
        let mut b = Vec::with_capacity(tall.rows() * r);
        tall.times(input.apply(x, algebra)?.as_ref(), |_, panel| {
            b.extend(rows(panel, &on_b));
        })?;
        Ok((a, b))
    }
}

/// Raises the leading singular values to a power, with a floor for noise.
fn singular_value_powers(values: &[f64], exponent: f64) -> Vec<f64> {
    let floor = f64::EPSILON.sqrt() * values.first().copied().unwrap_or(0.0);
    let power = |s: &f64| match s.max(floor) {
        0.0 => 0.0,
        s => s.powf(exponent),
    };
    values.iter().map(power).collect()
}

fn fix_signs(a: &mut [f32], on_b: &mut [f64]) {
    let width = a.len() / on_b.len();
    for (row, factor) in a.chunks_exact_mut(width).zip(on_b) {
        if sign_of_largest(row.iter().copied()) < 0.0 {
            row.iter_mut().for_each(|v| *v = -*v);
            *factor = -*factor;
        }
    }
}

fn columns(matrix: MatRef<'_, f64>, factors: &[f64]) -> Vec<f32> {
    let mut out = Vec::with_capacity(matrix.nrows() * matrix.ncols());
    for (column, factor) in matrix.col_iter().zip(factors) {
        out.extend(column.iter().map(|v| (v * factor) as f32));
    }
    out
}

fn rows(matrix: MatRef<'_, f64>, factors: &[f64]) -> impl Iterator<Item = f32> {
    matrix.row_iter().flat_map(move |row| {
        row.iter()
            .zip(factors)
            .map(|(v, factor)| (v * factor) as f32)
    })
}
