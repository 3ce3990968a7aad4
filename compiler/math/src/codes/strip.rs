//! A strip of at most 256 rows, with feedback: what coding columns loses of the outputs is put back by the
//! columns behind them.
//!
//! As in [`Feedback::code`], with columns of trellises four at a time. With `C = N D Nᵀ` a quad `q` of
//! them is best coded as the numbers nearest to `W_q + (Σ_{j<q} E_j N_jq) N_qq⁻¹`, under the metric
//! `N_qq D_q N_qqᵀ`, of which the diagonal is looked at.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use htc_formats::bands::{
    BAND, BandsError, Codes, Kind, LEVEL_UNIT, Packer, QUAD, QUADS, STRIP_ROWS, stored_scale,
};

use super::{BandsEncodeError, Columns, Levels, Viterbi};
use crate::{Feedback, Weight};

/// Codes of a strip's rows, as yet in no file.
#[derive(Clone, Debug)]
pub struct CodedStrip {
    /// The scales of rows in bands of levels, and in those of trellises.
    rows: [Vec<f32>; 2],
    bands: Vec<CodedBand>,
}

#[derive(Clone, Debug)]
enum CodedBand {
    /// A scale for each row; for each quad a code for each weight, row by row.
    Levels(Vec<u8>, [Vec<u8>; QUADS]),
    /// For each quad a state for each weight, row by row.
    Trellis([Vec<u16>; QUADS]),
}

impl CodedStrip {
    /// Writes it as the strip of this index.
    ///
    /// # Errors
    /// [`BandsError::Scale`] for the scale of a row that is none in f16.
    pub fn pack(&self, strip: usize, packer: &mut Packer) -> Result<(), BandsError> {
        for (kind, scales) in KINDS.into_iter().zip(&self.rows) {
            for (r, &scale) in scales.iter().enumerate() {
                packer.row_scale(kind, strip * STRIP_ROWS + r, scale)?;
            }
        }
        for (band, coded) in self.bands.iter().enumerate() {
            match coded {
                CodedBand::Levels(scales, quads) => {
                    packer.level_scales(strip, band, scales);
                    for (quad, codes) in quads.iter().enumerate() {
                        packer.levels(strip, band, quad, codes);
                    }
                }
                CodedBand::Trellis(quads) => {
                    for (quad, states) in quads.iter().enumerate() {
                        packer.trellis(strip, band, quad, states);
                    }
                }
            }
        }
        Ok(())
    }
}

/// In the order of [`CodedStrip::rows`].
const KINDS: [Kind; 2] = [Kind::Levels, Kind::Trellis];

/// Codes strips of one matrix after the other, on the calling thread. The codes of a strip depend on its
/// rows, the scales of columns and the feedback alone.
#[derive(Clone, Debug)]
pub struct StripCoder<'a> {
    codes: &'a Codes,
    columns: &'a Columns,
    feedback: Option<&'a Feedback>,
    sweeps: usize,
    /// By bits, made when a band asks for it.
    searches: Vec<Viterbi>,
    tables: Vec<Levels>,
}

/// What is known of a strip while it is coded.
struct Strip<'w> {
    /// The first row in the matrix.
    first: usize,
    /// Rows, and those with padding.
    rows: usize,
    padded: usize,
    cols: usize,
    /// `W [rows, cols]`.
    weights: &'w [f32],
    /// What feedback makes of it.
    targets: Vec<f32>,
    /// What the codes stand for.
    values: Vec<f32>,
    coded: CodedStrip,
}

impl<'a> StripCoder<'a> {
    /// For a matrix in these codes whose columns have these scales. Without feedback the squares of errors
    /// count alike; with it there are `sweeps` of descent over levels behind it.
    pub fn new(
        codes: &'a Codes,
        columns: &'a Columns,
        feedback: Option<&'a Feedback>,
        sweeps: usize,
    ) -> StripCoder<'a> {
        StripCoder {
            codes,
            columns,
            feedback,
            sweeps,
            searches: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Codes the rows of the strip of this index.
    ///
    /// # Errors
    /// [`BandsEncodeError::Length`] where they are more than a strip's or other columns than the feedback's;
    /// [`BandsEncodeError::Scale`] where numbers are too large.
    pub fn code(&mut self, index: usize, rows: Weight<'_>) -> Result<CodedStrip, BandsEncodeError> {
        let (cols, found) = (self.codes.cols(), rows.values.len());
        let length = BandsEncodeError::Length {
            rows: rows.rows,
            cols,
            found,
        };
        let fits = rows.rows <= STRIP_ROWS && rows.cols == cols && rows.rows * cols == found;
        if !fits || self.feedback.is_some_and(|feedback| feedback.order != cols) {
            return Err(length);
        }
        let mut strip = self.begin(index * STRIP_ROWS, rows)?;
        for band in 0..self.codes.len() {
            self.band(&mut strip, band)?;
            if let Some(feedback) = self.feedback {
                strip.carry(feedback, band);
            }
        }
        if let Some(feedback) = self.feedback {
            let mut slopes = Vec::new();
            let sweeps = if self.codes.has(Kind::Levels) {
                self.sweeps
            } else {
                0
            };
            for _ in 0..sweeps {
                strip.slopes(feedback, &mut slopes);
                if !self.sweep(&mut strip, feedback, &mut slopes)? {
                    break;
                }
            }
            strip.refit(self.codes, feedback, &mut slopes)?;
        }
        Ok(strip.coded)
    }

    fn begin<'w>(&self, first: usize, rows: Weight<'w>) -> Result<Strip<'w>, BandsEncodeError> {
        let mut scales = [Vec::new(), Vec::new()];
        for (kind, scales) in KINDS.into_iter().zip(&mut scales) {
            if self.codes.has(kind) {
                for (r, row) in rows.values.chunks_exact(rows.cols.max(1)).enumerate() {
                    scales.push(half(first + r, self.columns.row_scale(kind, row))?);
                }
            }
        }
        let coded = CodedStrip {
            rows: scales,
            bands: Vec::with_capacity(self.codes.len()),
        };
        Ok(Strip {
            first,
            rows: rows.rows,
            padded: Codes::strip_rows(rows.rows, 0),
            cols: rows.cols,
            weights: rows.values,
            targets: rows.values.to_vec(),
            values: vec![0.0; rows.values.len()],
            coded,
        })
    }

    /// Codes a band, with feedback inside of it.
    fn band(&mut self, strip: &mut Strip<'_>, band: usize) -> Result<(), BandsEncodeError> {
        let bits = self.codes[band].bits();
        let feedback = self.feedback;
        let coded = match self.codes[band].kind() {
            Kind::Levels => {
                let levels = table(&mut self.tables, bits)?;
                let mut scales = vec![0; strip.padded];
                let importance = feedback.map(|of| &of.importance()[band * BAND..][..BAND]);
                for (r, scale) in scales.iter_mut().enumerate().take(strip.rows) {
                    let unit = strip.coded.rows[0][r] * LEVEL_UNIT;
                    let targets = &strip.targets[r * strip.cols + band * BAND..][..BAND];
                    let mut x = [0.0; BAND];
                    x.iter_mut()
                        .zip(targets)
                        .for_each(|(x, &t)| *x = over(t, unit));
                    *scale = levels.scale(&x, importance);
                }
                let mut quads = std::array::from_fn(|_| vec![0; strip.padded * QUAD]);
                for (quad, codes) in quads.iter_mut().enumerate() {
                    for c in 0..QUAD {
                        let col = band * BAND + quad * QUAD + c;
                        for r in 0..strip.rows {
                            let at = r * strip.cols + col;
                            let unit = strip.coded.rows[0][r] * LEVEL_UNIT * f32::from(scales[r]);
                            let nearest = levels.nearest(over(strip.targets[at], unit));
                            codes[r * QUAD + c] = nearest.code;
                            strip.values[at] = f32::from(nearest.value) * unit;
                        }
                        if let Some(feedback) = feedback {
                            strip.carry_inside(feedback, col..col + 1);
                        }
                    }
                }
                CodedBand::Levels(scales, quads)
            }
            Kind::Trellis => {
                let search = search(&mut self.searches, bits)?;
                let mut quads: [Vec<u16>; QUADS] = Default::default();
                for (quad, states) in quads.iter_mut().enumerate() {
                    let first = band * BAND + quad * QUAD;
                    let metric = Metric::behind(feedback, first);
                    let wanted = strip.wanted(first, &metric);
                    let columns = self.columns.scales(first);
                    *states = strip.search(search, &wanted, columns, metric.diagonal);
                    strip.stand_for(search, states, columns, first);
                    if let Some(feedback) = feedback {
                        strip.carry_inside(feedback, first..first + QUAD);
                    }
                }
                CodedBand::Trellis(quads)
            }
        };
        strip.coded.bands.push(coded);
        Ok(())
    }

    /// One sweep of descent over the levels, `slopes` being `E C`; whether any changed. Searching the paths of
    /// trellises again gains nothing.
    fn sweep(
        &mut self,
        strip: &mut Strip<'_>,
        feedback: &Feedback,
        slopes: &mut [f32],
    ) -> Result<bool, BandsEncodeError> {
        let mut bands = std::mem::take(&mut strip.coded.bands);
        let mut changed = false;
        for (band, coded) in bands.iter_mut().enumerate() {
            if let CodedBand::Levels(scales, quads) = coded {
                let levels = table(&mut self.tables, self.codes[band].bits())?;
                changed |= strip.sweep_levels(levels, feedback, band, (scales, quads), slopes);
            }
        }
        strip.coded.bands = bands;
        Ok(changed)
    }
}

fn table(tables: &mut Vec<Levels>, bits: u8) -> Result<&Levels, BandsEncodeError> {
    let at = match tables.iter().position(|of| of.bits() == bits) {
        Some(at) => at,
        None => {
            tables.push(Levels::new(bits)?);
            tables.len() - 1
        }
    };
    Ok(&tables[at])
}

fn search(searches: &mut Vec<Viterbi>, bits: u8) -> Result<&mut Viterbi, BandsEncodeError> {
    let at = match searches.iter().position(|of| of.bits() == bits) {
        Some(at) => at,
        None => {
            searches.push(Viterbi::new(bits)?);
            searches.len() - 1
        }
    };
    Ok(&mut searches[at])
}

/// The scale of a row as it is in f16.
fn half(row: usize, scale: f32) -> Result<f32, BandsEncodeError> {
    let rounded = stored_scale(scale);
    if rounded.is_finite() {
        return Ok(rounded);
    }
    Err(BandsError::Scale {
        of: "row",
        index: row,
        value: scale,
    }
    .into())
}

/// A number over a scale; zero over a scale of zero, where no code matters.
fn over(x: f32, scale: f32) -> f32 {
    if scale > 0.0 { x / scale } else { 0.0 }
}

/// How errors of four columns count together.
struct Metric {
    /// What the columns behind cannot make up for of each.
    diagonal: [f32; QUAD],
    /// `N_qq⁻¹`.
    inverse: [[f32; QUAD]; QUAD],
}

impl Metric {
    /// Of columns whose errors those behind make up for.
    fn behind(feedback: Option<&Feedback>, first: usize) -> Metric {
        let mut inverse = [[0.0; QUAD]; QUAD];
        for (i, row) in inverse.iter_mut().enumerate() {
            row[i] = 1.0;
        }
        let Some(feedback) = feedback else {
            return Metric {
                diagonal: [1.0; QUAD],
                inverse,
            };
        };
        let n = feedback.order;
        let factor = |i: usize, j: usize| feedback.factor[(first + i) * n + first + j];
        let own = &feedback.importance()[first..][..QUAD];
        let diagonal = std::array::from_fn(|i| {
            let behind = (i + 1..QUAD).map(|j| factor(i, j).powi(2) * own[j]);
            own[i] + behind.sum::<f32>()
        });
        // Column by column, from the diagonal upwards, of a triangular matrix with ones on its diagonal.
        let above = (0..QUAD).flat_map(|j| (0..j).rev().map(move |i| (i, j)));
        for (i, j) in above {
            let sum: f32 = (i + 1..=j).map(|k| factor(i, k) * inverse[k][j]).sum();
            inverse[i][j] = -sum;
        }
        Metric { diagonal, inverse }
    }
}

impl Strip<'_> {
    /// What a quad should be, given those before it, `[padded, 4]`.
    fn wanted(&self, first: usize, metric: &Metric) -> Vec<[f32; QUAD]> {
        let mut wanted = vec![[0.0; QUAD]; self.padded];
        for (r, wanted) in wanted.iter_mut().enumerate().take(self.rows) {
            let at = r * self.cols + first;
            let (weights, targets) = (&self.weights[at..][..QUAD], &self.targets[at..][..QUAD]);
            for j in 0..QUAD {
                let moved: f32 = (0..=j)
                    .map(|i| (targets[i] - weights[i]) * metric.inverse[i][j])
                    .sum();
                wanted[j] = weights[j] + moved;
            }
        }
        wanted
    }

    /// The states whose values are nearest to what is wanted of a quad.
    fn search(
        &self,
        search: &mut Viterbi,
        wanted: &[[f32; QUAD]],
        columns: [f32; QUAD],
        diagonal: [f32; QUAD],
    ) -> Vec<u16> {
        let mut targets = vec![[0.0; QUAD]; self.padded];
        let mut importance = vec![[0.0; QUAD]; self.padded];
        // In units of the mean row, so that costs stay within a float's range.
        let rows = &self.coded.rows[1];
        let mean = rows.iter().map(|&row| f64::from(row).powi(2)).sum::<f64>() / rows.len() as f64;
        let mean = mean.max(f64::MIN_POSITIVE).sqrt() as f32;
        let widest = (0..QUAD).map(|c| diagonal[c].sqrt() * columns[c]);
        let widest = widest.fold(f32::MIN_POSITIVE, f32::max);
        for (r, &row) in rows.iter().enumerate() {
            for c in 0..QUAD {
                targets[r][c] = over(wanted[r][c], row * columns[c]);
                importance[r][c] = (row / mean * columns[c] / widest).powi(2) * diagonal[c];
            }
        }
        let mut states = vec![0; self.padded * QUAD];
        search.encode(
            targets.as_flattened(),
            Some(importance.as_flattened()),
            &mut states,
        );
        states
    }

    /// What the states of a quad stand for.
    fn stand_for(&mut self, search: &Viterbi, states: &[u16], columns: [f32; QUAD], first: usize) {
        let states = states.as_chunks::<QUAD>().0;
        for (r, (states, &row)) in states.iter().zip(&self.coded.rows[1]).enumerate() {
            let values = &mut self.values[r * self.cols + first..][..QUAD];
            for c in 0..QUAD {
                values[c] = row * columns[c] * search.value(states[c]);
            }
        }
    }

    /// Moves what is wanted of the columns of a band behind some that are coded now.
    fn carry_inside(&mut self, feedback: &Feedback, coded: std::ops::Range<usize>) {
        let end = (coded.start / BAND + 1) * BAND;
        for r in 0..self.rows {
            let at = r * self.cols;
            for col in coded.clone() {
                let error = self.weights[at + col] - self.values[at + col];
                let factors = &feedback.factor[col * feedback.order..][coded.end..end];
                let behind = &mut self.targets[at + coded.end..at + end];
                for (target, factor) in behind.iter_mut().zip(factors) {
                    *target += error * factor;
                }
            }
        }
    }

    /// Moves what is wanted of the columns behind a band.
    fn carry(&mut self, feedback: &Feedback, band: usize) {
        let (start, behind) = (band * BAND, (band + 1) * BAND);
        if behind >= self.cols {
            return;
        }
        let mut errors = vec![0.0f32; self.rows * BAND];
        for (r, errors) in errors.chunks_exact_mut(BAND).enumerate() {
            let at = r * self.cols + start;
            let pairs = self.weights[at..][..BAND].iter().zip(&self.values[at..]);
            errors
                .iter_mut()
                .zip(pairs)
                .for_each(|(error, (w, value))| *error = w - value);
        }
        let n = self.cols;
        let targets = MatMut::from_row_major_slice_mut(&mut self.targets, self.rows, n);
        let factor = MatRef::from_row_major_slice(&feedback.factor, n, n);
        matmul(
            targets.subcols_mut(behind, n - behind),
            Accum::Add,
            MatRef::from_row_major_slice(&errors, self.rows, BAND),
            factor.submatrix(start, behind, BAND, n - behind),
            1.0,
            Par::Seq,
        );
    }

    /// Half of the gradient of `tr(E C Eᵀ)` with its sign turned, `E C`.
    fn slopes(&self, feedback: &Feedback, slopes: &mut Vec<f32>) {
        let pairs = self.weights.iter().zip(&self.values);
        let errors: Vec<f32> = pairs.map(|(w, value)| w - value).collect();
        product(&errors, self.rows, feedback, slopes);
    }

    fn sweep_levels(
        &mut self,
        levels: &Levels,
        feedback: &Feedback,
        band: usize,
        (scales, quads): (&[u8], &mut [Vec<u8>; QUADS]),
        slopes: &mut [f32],
    ) -> bool {
        let n = self.cols;
        let mut changed = false;
        for r in 0..self.rows {
            let unit = self.coded.rows[0][r] * LEVEL_UNIT * f32::from(scales[r]);
            let slopes = &mut slopes[r * n..][..n];
            for c in 0..BAND {
                let col = band * BAND + c;
                let of_column = &feedback.moment[col * n..][..n];
                let step = slopes[col] / of_column[col];
                let before = self.values[r * n + col];
                let nearest = levels.nearest(over(before + step, unit));
                let value = f32::from(nearest.value) * unit;
                // Nearer to the minimum, or not at all: of two that are as near the first stays.
                if (value - before - step).abs() >= step.abs() {
                    continue;
                }
                quads[c / QUAD][r * QUAD + c % QUAD] = nearest.code;
                self.values[r * n + col] = value;
                changed = true;
                let moved = value - before;
                for (slope, of) in slopes.iter_mut().zip(of_column) {
                    *slope -= moved * of;
                }
            }
        }
        changed
    }

    /// The scales of rows by least squares under the second moment, codes fixed.
    fn refit(
        &mut self,
        codes: &Codes,
        feedback: &Feedback,
        slopes: &mut Vec<f32>,
    ) -> Result<(), BandsEncodeError> {
        self.slopes(feedback, slopes);
        let n = self.cols;
        let of = |kind: Kind, values: &[f32]| -> Vec<f32> {
            let kinds = codes.iter().flat_map(|code| [code.kind() == kind; BAND]);
            let mask: Vec<bool> = kinds.collect();
            let values = values.iter().zip(mask.iter().cycle());
            values.map(|(&v, &of)| if of { v } else { 0.0 }).collect()
        };
        let parts = KINDS.map(|kind| {
            let mut products = Vec::new();
            let part = codes.has(kind).then(|| of(kind, &self.values));
            if let Some(part) = &part {
                product(part, self.rows, feedback, &mut products);
            }
            part.map(|part| (part, products))
        });
        for r in 0..self.rows {
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                let pairs = a[r * n..][..n].iter().zip(&b[r * n..][..n]);
                pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            let slope = |i: usize| parts[i].as_ref().map_or(0.0, |(part, _)| dot(part, slopes));
            let curve = |i: usize, j: usize| match (&parts[i], &parts[j]) {
                (Some((part, _)), Some((_, products))) => dot(part, products),
                _ => 0.0,
            };
            let (g, h) = ([slope(0), slope(1)], [curve(0, 0), curve(1, 1)]);
            let cross = curve(0, 1);
            let determinant = h[0] * h[1] - cross * cross;
            let by = match [h[0] > 0.0, h[1] > 0.0] {
                [true, true] if determinant > 1e-9 * h[0] * h[1] => [
                    (g[0] * h[1] - g[1] * cross) / determinant,
                    (g[1] * h[0] - g[0] * cross) / determinant,
                ],
                [true, false] => [g[0] / h[0], 0.0],
                [false, true] => [0.0, g[1] / h[1]],
                _ => [0.0, 0.0],
            };
            for (scales, by) in self.coded.rows.iter_mut().zip(by) {
                if let Some(scale) = scales.get_mut(r) {
                    // A factor that turns a row around or doubles it fits nothing.
                    let factor = 1.0 + by.clamp(-0.5, 0.5) as f32;
                    *scale = half(self.first + r, *scale * factor)?;
                }
            }
        }
        Ok(())
    }
}

/// `values · C`, `[rows, n]`.
fn product(values: &[f32], rows: usize, feedback: &Feedback, out: &mut Vec<f32>) {
    let n = feedback.order;
    out.clear();
    out.resize(rows * n, 0.0);
    matmul(
        MatMut::from_row_major_slice_mut(out, rows, n),
        Accum::Replace,
        MatRef::from_row_major_slice(values, rows, n),
        MatRef::from_row_major_slice(&feedback.moment, n, n),
        1.0,
        Par::Seq,
    );
}
