//! Gauges: norms in which factorisations approximate weights.
//!
//! An invertible gauge `G [in, in]` on the inputs and a diagonal `H [out, out]` on the outputs make
//! [`low_rank_with`](super::low_rank_with) and [`shared_basis_with`](super::shared_basis_with)
//! minimise `‖H (W − Ŵ) G‖_F`: they decompose `H W G`, and the inverses go back into the factors. A
//! large entry means a large weight of the error; the literature often names the inverse `G`.
//!
//! [`Gauge::activation`] has `g_i = C_ii^½` (the family of ASVD, Yuan et al. 2023),
//! [`Gauge::whiten`] `G = C^½` with the second moment `C = E[x xᵀ]`, the best approximation of the
//! outputs (the family of SVD-LLM, Wang et al. 2024, by eigendecomposition instead of Cholesky).
//! Scaling a gauge does not change the factors.

use std::sync::{Mutex, OnceLock, PoisonError};

use faer::{Accum, Mat, MatMut, MatRef};

use super::{Algebra, FactoriseError, LeadingVectors, power_of_two_below};

/// Exponent of [`Gauge::activation`] that makes it `C_ii^½`.
pub const DEFAULT_EXPONENT: f64 = 1.0;

/// Fraction of `tr(C)/n · I` in [`Gauge::whiten`].
pub const DEFAULT_SHRINKAGE: f64 = 1e-2;

/// Smallest channel variance relative to the mean, for channels unseen by calibration.
const CHANNEL_FLOOR: f64 = 1e-6;

/// Smallest eigenvalue relative to the largest, so that `C^½` is invertible.
const EIGENVALUE_FLOOR: f64 = 1e-12;

/// Tolerance of `|C_ij| ≤ (C_ii C_jj)^½` for rounding.
const CAUCHY_SCHWARZ_TOLERANCE: f64 = 1.0 + 1e-3;

/// Smaller ones are rounding.
pub(super) const NEGATIVE_EIGENVALUE_TOLERANCE: f64 = 1e-6;

const MAX_ENTRY_RATIO: f64 = 1e12;

/// Second moment `C = E[x xᵀ]` of the inputs of a projection.
#[derive(Clone, Copy, Debug)]
pub struct SecondMoment<'a> {
    /// Order `n`.
    pub order: usize,
    /// `[n, n]`, row-major; only the lower triangle is read.
    pub values: &'a [f64],
}

impl<'a> SecondMoment<'a> {
    /// Checks length, finite entries and the Cauchy-Schwarz bound.
    pub(super) fn check(&self) -> Result<(), FactoriseError> {
        let n = self.order;
        if n == 0 || n.checked_mul(n) != Some(self.values.len()) {
            return Err(FactoriseError::MomentLength {
                order: n,
                found: self.values.len(),
            });
        }
        let mut roots = Vec::with_capacity(n);
        for (row, values) in self.values.chunks_exact(n).enumerate() {
            let value = values[row];
            if !value.is_finite() || value < 0.0 {
                return Err(FactoriseError::MomentEntry {
                    row,
                    col: row,
                    value,
                });
            }
            let root = value.sqrt();
            roots.push(root);
            let bounds = roots
                .iter()
                .map(|other| CAUCHY_SCHWARZ_TOLERANCE * root * other);
            for ((col, &value), bound) in values.iter().enumerate().zip(bounds) {
                let slack = f64::from(f32::MIN_POSITIVE);
                let possible = value.is_finite() && value.abs() <= bound + slack;
                if !possible {
                    return Err(FactoriseError::MomentEntry { row, col, value });
                }
            }
        }
        Ok(())
    }

    /// Returns the diagonal `C_ii`.
    pub fn diagonal(&self) -> Vec<f64> {
        let rows = self.values.chunks_exact(self.order.max(1)).enumerate();
        rows.filter_map(|(i, row)| row.get(i).copied()).collect()
    }

    pub(super) fn lower(&self) -> MatRef<'a, f64> {
        MatRef::from_row_major_slice(self.values, self.order, self.order)
    }
}

/// Checks the diagonal of a second moment.
pub(super) fn check_diagonal(diagonal: &[f64]) -> Result<(), FactoriseError> {
    match diagonal.iter().position(|c| !c.is_finite() || *c < 0.0) {
        None => Ok(()),
        Some(at) => Err(FactoriseError::MomentEntry {
            row: at,
            col: at,
            value: diagonal[at],
        }),
    }
}

/// Diagonal gauge.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagonal {
    /// Root mean square in `[1, 2)`.
    entries: Vec<f64>,
    /// A power of two; the gauge is `scale · entries`.
    scale: f64,
}

impl Diagonal {
    /// Creates the gauge with these entries.
    pub fn new(mut entries: Vec<f64>) -> Result<Self, FactoriseError> {
        let largest = entries.iter().copied().fold(0.0, f64::max);
        let possible = |g: f64| g.is_finite() && g > 0.0 && g * MAX_ENTRY_RATIO >= largest;
        if let Some(index) = entries.iter().position(|&g| !possible(g)) {
            return Err(FactoriseError::GaugeEntry {
                index,
                value: entries[index],
            });
        }
        let by_largest = power_of_two_below(largest);
        entries.iter_mut().for_each(|g| *g /= by_largest);
        let squares: f64 = entries.iter().map(|g| g * g).sum();
        let by_mean = power_of_two_below((squares / entries.len().max(1) as f64).sqrt());
        entries.iter_mut().for_each(|g| *g /= by_mean);
        Ok(Diagonal {
            entries,
            scale: by_largest * by_mean,
        })
    }

    /// Returns the entries without [`scale`](Self::scale).
    pub(super) fn entries(&self) -> &[f64] {
        &self.entries
    }

    pub(super) fn scale(&self) -> f64 {
        self.scale
    }

    pub(super) fn check(&self, expected: usize) -> Result<(), FactoriseError> {
        match self.entries.len() {
            found if found == expected => Ok(()),
            found => Err(FactoriseError::GaugeOrder { expected, found }),
        }
    }
}

/// `C^½` for a shrunk second moment `C`, computed on first use.
#[derive(Debug)]
pub struct Whitening {
    /// Lower triangle, with a mean diagonal in `[1, 4)`.
    moment: Mat<f64>,
    scale: f64,
    roots: OnceLock<Roots>,
    root_lock: Mutex<()>,
}

/// `C^½` and its inverse, both exactly symmetric.
#[derive(Debug)]
struct Roots {
    root: Mat<f64>,
    inverse: Mat<f64>,
}

impl Whitening {
    fn new(moment: Mat<f64>, scale: f64) -> Whitening {
        Whitening {
            moment,
            scale,
            roots: OnceLock::new(),
            root_lock: Mutex::new(()),
        }
    }

    /// Returns `C / scale²`; only the lower triangle is valid.
    pub(super) fn moment(&self) -> MatRef<'_, f64> {
        self.moment.as_ref()
    }

    /// Returns `C^½ / scale`.
    pub(super) fn root(&self, algebra: &dyn Algebra) -> Result<MatRef<'_, f64>, FactoriseError> {
        Ok(self.roots(algebra)?.root.as_ref())
    }

    fn inverse(&self, algebra: &dyn Algebra) -> Result<MatRef<'_, f64>, FactoriseError> {
        Ok(self.roots(algebra)?.inverse.as_ref())
    }

    fn roots(&self, algebra: &dyn Algebra) -> Result<&Roots, FactoriseError> {
        if let Some(roots) = self.roots.get() {
            return Ok(roots);
        }
        let finding = self.root_lock.lock();
        let _finding = finding.unwrap_or_else(PoisonError::into_inner);
        if let Some(roots) = self.roots.get() {
            return Ok(roots);
        }
        let n = self.moment.nrows();
        let LeadingVectors { values, vectors } = algebra.eigen(self.moment.clone(), n)?;
        let (largest, smallest) = (values[0], values[n - 1]);
        if smallest < -NEGATIVE_EIGENVALUE_TOLERANCE * largest {
            return Err(FactoriseError::Indefinite { smallest, largest });
        }
        let floor = EIGENVALUE_FLOOR * largest;
        let power = |exponent: f64| -> Result<Mat<f64>, FactoriseError> {
            let scaled = Mat::from_fn(n, n, |i, j| {
                vectors[(i, j)] * values[j].max(floor).powf(exponent)
            });
            let mut product = algebra.multiply_lower(scaled.as_ref(), vectors.transpose())?;
            mirror(product.as_mut());
            Ok(product)
        };
        let roots = Roots {
            root: power(0.5)?,
            inverse: power(-0.5)?,
        };
        Ok(self.roots.get_or_init(|| roots))
    }
}

/// Weighting of errors at the inputs of a projection.
#[derive(Debug, Default)]
pub enum Gauge {
    /// The identity.
    #[default]
    None,
    /// One factor per input.
    Diagonal(Diagonal),
    /// A symmetric matrix.
    Full(Whitening),
}

impl Gauge {
    /// Returns `g_i = C_ii^(exponent/2)` from the diagonal of the second moment `C` at the input.
    ///
    /// `C_ii` below 1e-6 of their mean are raised to it. An all-zero diagonal gives
    /// [`Gauge::None`]. The usual exponent is [`DEFAULT_EXPONENT`].
    ///
    /// # Errors
    /// Entries that are negative or not finite, an exponent outside `0..=2`.
    pub fn activation(diagonal: &[f64], exponent: f64) -> Result<Self, FactoriseError> {
        if !(0.0..=2.0).contains(&exponent) {
            return Err(FactoriseError::Exponent { found: exponent });
        }
        check_diagonal(diagonal)?;
        let mean = mean(diagonal.iter().copied());
        if mean == 0.0 {
            return Ok(Gauge::None);
        }
        let entry = |c: &f64| (c / mean).max(CHANNEL_FLOOR).powf(exponent / 2.0);
        let scale = mean.powf(exponent / 2.0);
        Diagonal::new(diagonal.iter().map(|c| entry(c) * scale).collect()).map(Gauge::Diagonal)
    }

    /// Returns `G = C'^½` with `C' = (1 − s) C + s tr(C)/n I` for the second moment `C` at the
    /// input and the shrinkage `s`, usually [`DEFAULT_SHRINKAGE`]. A second moment of zeros gives
    /// [`Gauge::None`]. An indefinite `C` is only detected with the root.
    pub fn whiten(moment: SecondMoment<'_>, shrinkage: f64) -> Result<Self, FactoriseError> {
        if !(0.0..=1.0).contains(&shrinkage) {
            return Err(FactoriseError::Shrinkage { found: shrinkage });
        }
        moment.check()?;
        let (n, lower) = (moment.order, moment.lower());
        let mean = mean((0..n).map(|i| lower[(i, i)]));
        if mean == 0.0 {
            return Ok(Gauge::None);
        }
        let scale = power_of_two_below(mean.sqrt());
        let shift = shrinkage * (mean / scale / scale);
        let mut shrunk = Mat::zeros(n, n);
        for j in 0..n {
            for i in j..n {
                let identity = if i == j { shift } else { 0.0 };
                shrunk[(i, j)] = (1.0 - shrinkage) * (lower[(i, j)] / scale / scale) + identity;
            }
        }
        Ok(Gauge::Full(Whitening::new(shrunk, scale)))
    }

    pub(super) fn restrict_to(&self, kept: &[usize]) -> Self {
        match self {
            Gauge::None => Gauge::None,
            Gauge::Diagonal(d) => Gauge::Diagonal(Diagonal {
                entries: kept.iter().map(|&i| d.entries[i]).collect(),
                scale: d.scale,
            }),
            // The root of the submatrix, not the submatrix of the root.
            Gauge::Full(w) => {
                let moment = Mat::from_fn(kept.len(), kept.len(), |i, j| {
                    let (i, j) = (kept[i], kept[j]);
                    w.moment[(i.max(j), i.min(j))]
                });
                Gauge::Full(Whitening::new(moment, w.scale))
            }
        }
    }

    pub(super) fn check(&self, expected: usize) -> Result<(), FactoriseError> {
        match self {
            Gauge::None => Ok(()),
            Gauge::Diagonal(d) => d.check(expected),
            Gauge::Full(w) if w.moment.nrows() == expected => Ok(()),
            Gauge::Full(w) => Err(FactoriseError::GaugeOrder {
                expected,
                found: w.moment.nrows(),
            }),
        }
    }

    /// Returns the power of two left out below.
    pub(super) fn scale(&self) -> f64 {
        match self {
            Gauge::None => 1.0,
            Gauge::Diagonal(d) => d.scale,
            Gauge::Full(w) => w.scale,
        }
    }

    /// Returns `G X`.
    pub(super) fn apply(
        &self,
        mut x: Mat<f64>,
        algebra: &dyn Algebra,
    ) -> Result<Mat<f64>, FactoriseError> {
        match self {
            Gauge::None => Ok(x),
            Gauge::Diagonal(d) => {
                scale_rows(x.as_mut(), |i| d.entries[i]);
                Ok(x)
            }
            Gauge::Full(w) => product(w.root(algebra)?, x.as_ref(), algebra),
        }
    }

    /// Returns `G⁻¹ X`.
    pub(super) fn apply_inverse(
        &self,
        mut x: Mat<f64>,
        algebra: &dyn Algebra,
    ) -> Result<Mat<f64>, FactoriseError> {
        match self {
            Gauge::None => Ok(x),
            Gauge::Diagonal(d) => {
                scale_rows(x.as_mut(), |i| 1.0 / d.entries[i]);
                Ok(x)
            }
            Gauge::Full(w) => product(w.inverse(algebra)?, x.as_ref(), algebra),
        }
    }
}

pub(super) fn scale_rows(x: MatMut<'_, f64>, factor: impl Fn(usize) -> f64) {
    for column in x.col_iter_mut() {
        for (i, value) in column.iter_mut().enumerate() {
            *value *= factor(i);
        }
    }
}

/// Returns `X Y`.
pub(super) fn product(
    x: MatRef<'_, f64>,
    y: MatRef<'_, f64>,
    algebra: &dyn Algebra,
) -> Result<Mat<f64>, FactoriseError> {
    let mut product = Mat::zeros(x.nrows(), y.ncols());
    algebra.multiply(product.as_mut(), Accum::Replace, x, y, 1.0)?;
    Ok(product)
}

/// Visits blocks of rows `Y_I` (with their first row) such that `Σ_I T_Iᵀ Y_I` has the symmetric
/// part `Tᵀ C T`, with half the work of `C T`; reads the lower triangle of `C [n, n]`.
pub(super) fn for_each_quadratic_block(
    lower: MatRef<'_, f64>,
    t: MatRef<'_, f64>,
    algebra: &dyn Algebra,
    mut visit: impl FnMut(usize, MatRef<'_, f64>) -> Result<(), FactoriseError>,
) -> Result<(), FactoriseError> {
    let n = lower.nrows();
    let block = algebra.panel_rows(n).min(n);
    let mut buffer = Mat::<f64>::zeros(block, t.ncols());
    for start in (0..n).step_by(block.max(1)) {
        let size = block.min(n - start);
        let mut rows = buffer.as_mut().subrows_mut(0, size);
        let mut diagonal = lower.submatrix(start, start, size, size).to_owned();
        mirror(diagonal.as_mut());
        algebra.multiply(
            rows.as_mut(),
            Accum::Replace,
            diagonal.as_ref(),
            t.subrows(start, size),
            1.0,
        )?;
        algebra.multiply(
            rows.as_mut(),
            Accum::Add,
            lower.submatrix(start, 0, size, start),
            t.subrows(0, start),
            2.0,
        )?;
        visit(start, rows.as_ref())?;
    }
    Ok(())
}

fn mirror(mut matrix: MatMut<'_, f64>) {
    for j in 0..matrix.ncols() {
        for i in 0..j {
            matrix[(i, j)] = matrix[(j, i)];
        }
    }
}

/// Returns the mean without overflow.
fn mean(values: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let largest = values.clone().fold(0.0, f64::max);
    if largest == 0.0 {
        return 0.0;
    }
    let count = values.len() as f64;
    largest * (values.map(|v| v / largest).sum::<f64>() / count)
}
