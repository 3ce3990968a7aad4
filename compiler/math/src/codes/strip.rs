//! Quantisation of a tile of at most 256 rows with error feedback along columns.
//!
//! As [`Feedback::code`], with trellis columns four at a time. With `C = N D Nᵀ` the optimum for a
//! quad `q` of columns is the code nearest to `W_q + (Σ_{j<q} E_j N_jq) N_qq⁻¹` under the diagonal
//! of the metric `N_qq D_q N_qqᵀ`. Padding columns carry no weight.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use htc_formats::bands::{
    BAND, BandsError, Code, Codes, GROUP_ROWS, Kind, QUAD, QUADS, STRIP_ROWS, stored_scale,
};

use super::coded::{CodedBand, CodedStrip, KINDS};
use super::metric::Metric;
use super::refit::ColumnFit;
use super::rows::Carried;
use super::trellis::Start;
use super::{BandsEncodeError, Columns, Levels, RowFeedback, Viterbi};
use crate::{FactoriseError, Feedback, Weight};

/// Lookahead rows of the path search.
const AHEAD: usize = 8;

/// Largest number of columns for which column scales are refitted: cost is quadratic, the gain one
/// percent.
pub const WIDEST_FIT: usize = 4096;

/// Error weights and error feedback.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guide<'a> {
    /// Along columns; `None` for unweighted errors without feedback.
    pub columns: Option<&'a Feedback>,
    /// Along rows; `None` for unweighted rows.
    pub rows: Option<&'a RowFeedback>,
    /// Sweeps of coordinate descent over codebook codes.
    pub sweeps: usize,
}

impl<'a> Guide<'a> {
    /// Returns the guide for these codes, rotated if they are.
    ///
    /// # Errors
    /// As [`Feedback::rotated`].
    pub fn of(self, codes: &Codes) -> Result<Guide<'a>, FactoriseError> {
        let columns = match self.columns {
            Some(columns) if codes.is_rotated() => Some(columns.rotated()?),
            columns => columns,
        };
        Ok(Guide { columns, ..self })
    }
}

/// Quantises the tiles of one matrix in order, on the calling thread.
#[derive(Clone, Debug)]
pub struct StripCoder<'a> {
    codes: &'a Codes,
    columns: &'a Columns,
    guide: Guide<'a>,
    carried: Carried<'a>,
    fit: Option<ColumnFit>,
    searches: Vec<Viterbi>,
    tables: Vec<Levels>,
}

pub(super) struct Strip {
    pub first: usize,
    /// Without and with padding.
    pub rows: usize,
    pub padded: usize,
    pub cols: usize,
    /// Original rows `[rows + _, cols]`, then lookahead rows.
    pub weights: Vec<f32>,
    pub targets: Vec<f32>,
    pub values: Vec<f32>,
    counts: Vec<f32>,
    scales: Vec<f32>,
    pub coded: CodedStrip,
}

/// First and last state of each quad's sequence.
type Ends = Vec<Option<(u16, u16)>>;

struct Part {
    rows: std::ops::Range<usize>,
    /// Lookahead: next rows, and the end of the tile for tail-biting.
    ahead: std::ops::Range<usize>,
    tail: std::ops::Range<usize>,
    ends: bool,
}

impl<'a> StripCoder<'a> {
    /// Creates a coder for a matrix.
    pub fn new(codes: &'a Codes, columns: &'a Columns, guide: Guide<'a>) -> StripCoder<'a> {
        StripCoder {
            codes,
            columns,
            guide,
            carried: Carried::new(guide.rows, codes.cols()),
            fit: guide
                .columns
                .filter(|_| codes.has(Kind::Trellis) && codes.cols() <= WIDEST_FIT)
                .map(|_| ColumnFit::new(codes.cols())),
            searches: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Quantises the rows of the next tile, `index`.
    ///
    /// # Errors
    /// [`BandsEncodeError::Length`] for a wrong shape; [`BandsEncodeError::Scale`] if numbers are
    /// too large.
    pub fn code(&mut self, index: usize, rows: Weight<'_>) -> Result<CodedStrip, BandsEncodeError> {
        let (cols, found) = (self.codes.cols(), rows.values.len());
        let length = BandsEncodeError::Length {
            rows: rows.rows,
            cols,
            found,
        };
        let fits = rows.rows <= STRIP_ROWS && rows.cols == cols && rows.rows * cols == found;
        let feedback = self.guide.columns;
        if !fits || feedback.is_some_and(|feedback| feedback.order != cols) {
            return Err(length);
        }
        let first = index * STRIP_ROWS;
        let step = self.carried.step().unwrap_or(STRIP_ROWS);
        let mut coded = CodedStrip::default();
        let mut ends: Ends = vec![None; cols.div_ceil(QUAD)];
        for start in (0..rows.rows).step_by(step) {
            let end = (start + step).min(rows.rows);
            let part = Part {
                rows: start..end,
                ahead: end..(end + AHEAD).min(rows.rows),
                tail: if start == 0 && end < rows.rows {
                    rows.rows.next_multiple_of(GROUP_ROWS) - GROUP_ROWS..rows.rows
                } else {
                    0..0
                },
                ends: end == rows.rows,
            };
            let mut strip = self.begin(first, rows, &part)?;
            for band in 0..self.codes.len() {
                self.band(&mut strip, band, (&part, &mut ends))?;
                if let Some(feedback) = feedback {
                    strip.carry(feedback, band);
                }
            }
            if let Some(feedback) = feedback {
                self.descend(&mut strip, feedback)?;
            }
            let exact = &rows.values[start * cols..end * cols];
            let pairs = exact.iter().zip(&strip.values);
            let errors: Vec<f32> = pairs.map(|(w, value)| w - value).collect();
            self.carried.put(first + start, &errors);
            if let (Some(fit), Some(feedback)) = (&mut self.fit, feedback) {
                let here = (first + start, &strip.values[..], &errors[..]);
                fit.add(here, self.guide.rows, feedback);
            }
            coded.append(strip.coded);
        }
        Ok(coded)
    }

    /// Returns the refitted column scales, after the last tile.
    pub fn columns(&self) -> Columns {
        let fits: Vec<bool> = (0..self.codes.cols())
            .map(|col| self.codes[col / BAND].kind() == Kind::Trellis)
            .collect();
        let found = self.fit.as_ref().zip(self.guide.columns);
        match found.and_then(|(fit, feedback)| fit.solve(feedback, &fits)) {
            Some(by) => self.columns.grown(&by),
            None => self.columns.clone(),
        }
    }

    fn descend(&mut self, strip: &mut Strip, feedback: &Feedback) -> Result<(), BandsEncodeError> {
        let mut slopes = Vec::new();
        let sweeps = if self.codes.has(Kind::Levels) {
            self.guide.sweeps
        } else {
            0
        };
        for _ in 0..sweeps {
            strip.slopes(feedback, &mut slopes);
            if !self.sweep(strip, feedback, &mut slopes)? {
                break;
            }
        }
        strip.refit(self.codes, feedback, &mut slopes)
    }

    fn begin(
        &self,
        first: usize,
        rows: Weight<'_>,
        part: &Part,
    ) -> Result<Strip, BandsEncodeError> {
        let cols = rows.cols;
        let all = || {
            part.rows
                .clone()
                .chain(part.ahead.clone())
                .chain(part.tail.clone())
        };
        let mut weights = Vec::with_capacity(all().count() * cols);
        for row in all() {
            let exact = &rows.values[row * cols..][..cols];
            match self.carried.of_row(first + row) {
                Some(moved) => weights.extend(exact.iter().zip(moved).map(|(w, by)| w + by)),
                None => weights.extend_from_slice(exact),
            }
        }
        let mut scales = [Vec::new(), Vec::new()];
        for (kind, scales) in KINDS.into_iter().zip(&mut scales) {
            if self.codes.has(kind) {
                for (row, values) in all().zip(weights.chunks_exact(cols.max(1))) {
                    scales.push(half(first + row, self.columns.row_scale(kind, values))?);
                }
            }
        }
        let count = part.rows.len();
        let of_trellis = scales[1].clone();
        scales.iter_mut().for_each(|scales| scales.truncate(count));
        let of_rows = self.guide.rows.map(RowFeedback::weights);
        let counts = all().map(|row| {
            let counts = of_rows.and_then(|of_rows| of_rows.get(first + row));
            counts.copied().unwrap_or(1.0)
        });
        Ok(Strip {
            first: first + part.rows.start,
            rows: count,
            padded: count.next_multiple_of(GROUP_ROWS),
            cols,
            targets: weights.clone(),
            weights,
            values: vec![0.0; count * cols],
            counts: counts.collect(),
            scales: of_trellis,
            coded: CodedStrip {
                rows: scales,
                bands: Vec::with_capacity(self.codes.len()),
            },
        })
    }

    fn band(
        &mut self,
        strip: &mut Strip,
        band: usize,
        (part, ends): (&Part, &mut Ends),
    ) -> Result<(), BandsEncodeError> {
        let code = self.codes[band];
        let (start, width) = (band * BAND, self.codes.band_cols(band));
        let end_of_band = start + width;
        let feedback = self.guide.columns;
        let coded = match search(&mut self.searches, code) {
            None => {
                let levels = table(&mut self.tables, code.bits())?;
                strip.code_levels(levels, feedback, start..end_of_band)
            }
            Some(search) => {
                let mut quads: [Vec<u16>; QUADS] = Default::default();
                for (quad, states) in quads.iter_mut().enumerate() {
                    let first = start + quad * QUAD;
                    if first >= end_of_band {
                        *states = vec![0; strip.padded * QUAD];
                        continue;
                    }
                    let metric = Metric::behind(feedback, first);
                    let wanted = strip.wanted(first, &metric);
                    let columns = self.columns.scales(first);
                    let of_quad = (columns, metric.diagonal);
                    let end = &mut ends[first / QUAD];
                    *states = strip.search(search, &wanted, of_quad, (part, end));
                    strip.stand_for(search, states, columns, first);
                    if let Some(feedback) = feedback {
                        strip.carry_inside(feedback, first..(first + QUAD).min(end_of_band));
                    }
                }
                CodedBand::Trellis(quads)
            }
        };
        strip.coded.bands.push(coded);
        Ok(())
    }

    /// Runs one sweep over the codebook codes; returns true if any changed. Repeating the trellis
    /// search gains nothing.
    fn sweep(
        &mut self,
        strip: &mut Strip,
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

fn search(searches: &mut Vec<Viterbi>, code: Code) -> Option<&mut Viterbi> {
    let at = match searches.iter().position(|of| of.code() == code) {
        Some(at) => at,
        None => {
            searches.push(Viterbi::new(code)?);
            searches.len() - 1
        }
    };
    searches.get_mut(at)
}

/// Rounds a row scale to f16.
pub(super) fn half(row: usize, scale: f32) -> Result<f32, BandsEncodeError> {
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

/// Divides by a scale; zero for a zero scale.
pub(super) fn over(x: f32, scale: f32) -> f32 {
    if scale > 0.0 { x / scale } else { 0.0 }
}

impl Strip {
    /// Returns the targets of a quad, `[rows + _, 4]`.
    fn wanted(&self, first: usize, metric: &Metric) -> Vec<[f32; QUAD]> {
        let mut wanted = vec![[0.0; QUAD]; self.counts.len()];
        let width = QUAD.min(self.cols - first);
        for (r, wanted) in wanted.iter_mut().enumerate() {
            let at = r * self.cols + first;
            let (weights, targets) = (&self.weights[at..][..width], &self.targets[at..][..width]);
            for j in 0..width {
                let moved: f32 = (0..=j)
                    .map(|i| (targets[i] - weights[i]) * metric.inverse[i][j])
                    .sum();
                wanted[j] = weights[j] + moved;
            }
        }
        wanted
    }

    /// Returns the nearest states for a quad, `[padded, 4]`.
    fn search(
        &self,
        search: &mut Viterbi,
        wanted: &[[f32; QUAD]],
        (columns, diagonal): ([f32; QUAD], [f32; QUAD]),
        (part, end): (&Part, &mut Option<(u16, u16)>),
    ) -> Vec<u16> {
        let tail = part.tail.len();
        let padding = if part.ends {
            self.padded - self.rows
        } else {
            0
        };
        let count = wanted.len() + padding;
        let mut targets = vec![[0.0; QUAD]; count];
        let mut importance = vec![[0.0; QUAD]; count];
        // In units of the mean row, to stay within the range of f32.
        let rows = &self.scales;
        let mean = rows.iter().map(|&row| f64::from(row).powi(2)).sum::<f64>() / rows.len() as f64;
        let mean = mean.max(f64::MIN_POSITIVE).sqrt() as f32;
        let widest = (0..QUAD).map(|c| diagonal[c].sqrt() * columns[c]);
        let widest = widest.fold(f32::MIN_POSITIVE, f32::max);
        for (r, (&row, &counts)) in rows.iter().zip(&self.counts).enumerate() {
            for c in 0..QUAD {
                targets[r][c] = over(wanted[r][c], row * columns[c]);
                let size = (row / mean * columns[c] / widest).powi(2);
                importance[r][c] = counts * size * diagonal[c];
            }
        }
        let (targets, importance) = (targets.as_flattened(), importance.as_flattened());
        let mut states = vec![0; self.padded * QUAD];
        let known = (count - tail) * QUAD;
        let (start, last) = match *end {
            None if part.ends => {
                search.encode(targets, Some(importance), &mut states);
                return states;
            }
            None => {
                let first = search.seam(targets, Some(importance));
                (Start::At(first), first)
            }
            Some((first, last)) => (Start::Behind(last), first),
        };
        let closes = part.ends.then_some(last);
        let (targets, importance) = (&targets[..known], &importance[..known]);
        search.part(targets, Some(importance), (start, closes), &mut states);
        *end = Some((last, states.last().copied().unwrap_or(last)));
        states
    }

    fn stand_for(&mut self, search: &Viterbi, states: &[u16], columns: [f32; QUAD], first: usize) {
        let states = states.as_chunks::<QUAD>().0;
        let width = QUAD.min(self.cols - first);
        for (r, (states, &row)) in states.iter().zip(&self.coded.rows[1]).enumerate() {
            let values = &mut self.values[r * self.cols + first..][..width];
            for c in 0..width {
                values[c] = row * columns[c] * search.value(states[c]);
            }
        }
    }

    /// Carries errors within a column group.
    fn carry_inside(&mut self, feedback: &Feedback, coded: std::ops::Range<usize>) {
        let end = ((coded.start / BAND + 1) * BAND).min(self.cols);
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

    /// Carries the errors of a column group to later ones.
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
        let targets = &mut self.targets[..self.rows * n];
        let targets = MatMut::from_row_major_slice_mut(targets, self.rows, n);
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
}
