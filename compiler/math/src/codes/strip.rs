//! Quantisation of a tile of at most 256 rows with error feedback along columns, as
//! [`ErrorFeedback::quantise`], with trellis columns four at a time.
//!
//! With `C = N D Nᵀ` the optimum for a quad `q` of columns is the code nearest to `W_q + (Σ_{j<q}
//! E_j N_jq) N_qq⁻¹` under the diagonal of the metric `N_qq D_q N_qqᵀ`. Padding columns carry no
//! weight.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use htc_formats::CodecError;
use htc_formats::bands::{
    Code, CodeKind, Codes, GROUP_COLS, GROUP_ROWS, QUAD, QUADS_PER_GROUP, TILE_ROWS, stored_scale,
};

use super::coded::{CodedColumnGroup, CodedTile};
use super::metric::QuadMetric;
use super::outliers::{clear_outliers, outlier_factors};
use super::refit::ColumnFit;
use super::rows::CarriedErrors;
use super::trellis::PathStart;
use super::{CodebookEncoder, ColumnScales, RowFeedback, Viterbi};
use crate::{ErrorFeedback, FactoriseError, Weight};

const LOOKAHEAD_ROWS: usize = 8;

/// Largest number of columns for which column scales are refitted.
pub const MAX_FIT_COLUMNS: usize = 4096;

/// Error weights and error feedback.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantisationGuide<'a> {
    /// Error feedback along columns; `None` for unweighted errors without feedback.
    pub columns: Option<&'a ErrorFeedback>,
    /// Error feedback along rows; `None` for unweighted rows.
    pub rows: Option<&'a RowFeedback>,
    /// Sweeps of coordinate descent over codebook codes.
    pub sweeps: usize,
}

impl<'a> QuantisationGuide<'a> {
    /// Returns the guide for these codes, rotated if they are.
    pub fn for_codes(self, codes: &Codes) -> Result<QuantisationGuide<'a>, FactoriseError> {
        let columns = match self.columns {
            Some(columns) if codes.is_rotated() => Some(columns.rotated()?),
            columns => columns,
        };
        Ok(QuantisationGuide { columns, ..self })
    }
}

/// Quantises the tiles of one matrix in order, on the calling thread.
#[derive(Clone, Debug)]
pub struct TileCoder<'a> {
    codes: &'a Codes,
    columns: &'a ColumnScales,
    guide: QuantisationGuide<'a>,
    carried: CarriedErrors<'a>,
    fit: Option<ColumnFit>,
    searches: Vec<Viterbi>,
    tables: Vec<CodebookEncoder>,
}

pub(super) struct TileState {
    pub first: usize,
    /// Number of rows, here without and in `padded` with padding.
    pub rows: usize,
    pub padded: usize,
    pub cols: usize,
    /// Original rows `[rows + _, cols]`, then lookahead rows.
    pub weights: Vec<f32>,
    pub targets: Vec<f32>,
    pub values: Vec<f32>,
    counts: Vec<f32>,
    scales: Vec<f32>,
    /// [`outlier_factors`] of the sizes in `scales`.
    factors: Vec<f32>,
    pub coded: CodedTile,
}

/// First and last state of each quad's sequence.
type EndStates = Vec<Option<(u16, u16)>>;

struct RowRange {
    rows: std::ops::Range<usize>,
    /// Next rows, and the end of the tile for tail-biting.
    lookahead: std::ops::Range<usize>,
    tail: std::ops::Range<usize>,
    ends: bool,
}

impl<'a> TileCoder<'a> {
    /// Creates a coder for a matrix.
    pub fn new(
        codes: &'a Codes,
        columns: &'a ColumnScales,
        guide: QuantisationGuide<'a>,
    ) -> TileCoder<'a> {
        TileCoder {
            codes,
            columns,
            guide,
            carried: CarriedErrors::new(guide.rows, codes.cols()),
            fit: guide
                .columns
                .filter(|_| {
                    codes.contains_kind(CodeKind::Trellis) && codes.cols() <= MAX_FIT_COLUMNS
                })
                .map(|_| ColumnFit::new(codes.cols())),
            searches: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Quantises the rows of the next tile, `index`.
    pub fn quantise(
        &mut self,
        index: usize,
        rows: Weight<'_>,
    ) -> Result<CodedTile, FactoriseError> {
        let (cols, found) = (self.codes.cols(), rows.values.len());
        let length = FactoriseError::Length {
            rows: rows.rows,
            cols,
            found,
        };
        let fits = rows.rows <= TILE_ROWS && rows.cols == cols && rows.rows * cols == found;
        let feedback = self.guide.columns;
        if !fits || feedback.is_some_and(|feedback| feedback.order != cols) {
            return Err(length);
        }
        let first = index * TILE_ROWS;
        let factors = outlier_factors(rows);
        let step = self.carried.rows_per_step().unwrap_or(TILE_ROWS);
        let mut coded = CodedTile::default();
        let mut ends: EndStates = vec![None; cols.div_ceil(QUAD)];
        for start in (0..rows.rows).step_by(step) {
            let end = (start + step).min(rows.rows);
            let part = RowRange {
                rows: start..end,
                lookahead: end..(end + LOOKAHEAD_ROWS).min(rows.rows),
                tail: if start == 0 && end < rows.rows {
                    rows.rows.next_multiple_of(GROUP_ROWS) - GROUP_ROWS..rows.rows
                } else {
                    0..0
                },
                ends: end == rows.rows,
            };
            let mut strip = self.begin(first, rows, &part, &factors)?;
            for band in 0..self.codes.len() {
                self.quantise_column_group(&mut strip, band, &part, &mut ends)?;
                if let Some(feedback) = feedback {
                    strip.carry_to_later_groups(feedback, band);
                }
            }
            if let Some(feedback) = feedback {
                self.descend(&mut strip, feedback)?;
            }
            let exact = &rows.values[start * cols..end * cols];
            let pairs = exact.iter().zip(&strip.values);
            let mut errors: Vec<f32> = pairs.map(|(w, value)| w - value).collect();
            clear_outliers(&factors[start..end], cols, &mut errors);
            self.carried.record_errors(first + start, &errors);
            if let (Some(fit), Some(feedback)) = (&mut self.fit, feedback) {
                let rows = self.guide.rows;
                clear_outliers(&factors[start..end], cols, &mut strip.values);
                fit.add(first + start, &strip.values, &errors, rows, feedback);
            }
            coded.append(strip.coded);
        }
        Ok(coded)
    }

    /// Returns the refitted column scales, after the last tile.
    pub fn refitted_column_scales(&self) -> ColumnScales {
        let fits: Vec<bool> = (0..self.codes.cols())
            .map(|col| self.codes[col / GROUP_COLS].kind() == CodeKind::Trellis)
            .collect();
        let found = self.fit.as_ref().zip(self.guide.columns);
        match found.and_then(|(fit, feedback)| fit.solve(feedback, &fits)) {
            Some(by) => self.columns.scaled_by(&by),
            None => self.columns.clone(),
        }
    }

    fn descend(
        &mut self,
        strip: &mut TileState,
        feedback: &ErrorFeedback,
    ) -> Result<(), FactoriseError> {
        let sweeps = if self.codes.contains_kind(CodeKind::Codebook) {
            self.guide.sweeps
        } else {
            0
        };
        for _ in 0..sweeps {
            let mut slopes = strip.compute_slopes(feedback);
            if !self.sweep(strip, feedback, &mut slopes)? {
                break;
            }
        }
        strip.refit_row_scales(self.codes, feedback)
    }

    fn begin(
        &self,
        first: usize,
        rows: Weight<'_>,
        part: &RowRange,
        factors: &[f32],
    ) -> Result<TileState, FactoriseError> {
        let cols = rows.cols;
        let all = || {
            part.rows
                .clone()
                .chain(part.lookahead.clone())
                .chain(part.tail.clone())
        };
        let mut weights = Vec::with_capacity(all().count() * cols);
        for row in all() {
            let exact = &rows.values[row * cols..][..cols];
            match self.carried.error_of_row(first + row) {
                Some(moved) => weights.extend(exact.iter().zip(moved).map(|(w, by)| w + by)),
                None => weights.extend_from_slice(exact),
            }
        }
        let mut scales = [Vec::new(), Vec::new()];
        for (kind, scales) in CodeKind::ALL.into_iter().zip(&mut scales) {
            if self.codes.contains_kind(kind) {
                for (row, values) in all().zip(weights.chunks_exact(cols.max(1))) {
                    scales.push(round_to_f16(
                        first + row,
                        self.columns.row_scale(kind, values),
                    )?);
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
        Ok(TileState {
            first: first + part.rows.start,
            rows: count,
            padded: count.next_multiple_of(GROUP_ROWS),
            cols,
            targets: weights.clone(),
            weights,
            values: vec![0.0; count * cols],
            counts: counts.collect(),
            scales: of_trellis,
            factors: all().map(|row| factors[row]).collect(),
            coded: CodedTile {
                row_scales: scales,
                column_groups: Vec::with_capacity(self.codes.len()),
            },
        })
    }

    fn quantise_column_group(
        &mut self,
        strip: &mut TileState,
        band: usize,
        part: &RowRange,
        ends: &mut EndStates,
    ) -> Result<(), FactoriseError> {
        let code = self.codes[band];
        let (start, width) = (band * GROUP_COLS, self.codes.group_cols(band));
        let end_of_band = start + width;
        let feedback = self.guide.columns;
        let coded = match trellis_for(&mut self.searches, code) {
            None => {
                let levels = codebook_for(&mut self.tables, code.bits())?;
                strip.quantise_with_codebook(levels, feedback, start..end_of_band)
            }
            Some(search) => {
                let mut quads: [Vec<u16>; QUADS_PER_GROUP] = Default::default();
                for (quad, states) in quads.iter_mut().enumerate() {
                    let first = start + quad * QUAD;
                    if first >= end_of_band {
                        *states = vec![0; strip.padded * QUAD];
                        continue;
                    }
                    let metric = QuadMetric::with_feedback(feedback, first);
                    let wanted = strip.quad_targets(first, &metric);
                    let columns = self.columns.scales(first);
                    let end = &mut ends[first / QUAD];
                    *states = strip.search(search, &wanted, columns, metric.diagonal, part, end);
                    strip.store_values(search, states, columns, first);
                    if let Some(feedback) = feedback {
                        strip.carry_within_group(feedback, first..(first + QUAD).min(end_of_band));
                    }
                }
                CodedColumnGroup::Trellis(quads)
            }
        };
        strip.coded.column_groups.push(coded);
        Ok(())
    }

    /// Returns true if any code changed. Repeating the trellis search gains nothing.
    fn sweep(
        &mut self,
        strip: &mut TileState,
        feedback: &ErrorFeedback,
        slopes: &mut [f32],
    ) -> Result<bool, FactoriseError> {
        let mut bands = std::mem::take(&mut strip.coded.column_groups);
        let mut changed = false;
        for (band, coded) in bands.iter_mut().enumerate() {
            if let CodedColumnGroup::Codebook(scales, quads) = coded {
                let levels = codebook_for(&mut self.tables, self.codes[band].bits())?;
                changed |= strip.sweep_codebook(levels, feedback, band, scales, quads, slopes);
            }
        }
        strip.coded.column_groups = bands;
        Ok(changed)
    }
}

fn codebook_for(
    tables: &mut Vec<CodebookEncoder>,
    bits: u8,
) -> Result<&CodebookEncoder, FactoriseError> {
    let at = tables.iter().position(|of| of.bits() == bits);
    if at.is_none() {
        tables.push(CodebookEncoder::new(bits)?);
    }
    Ok(&tables[at.unwrap_or(tables.len() - 1)])
}

fn trellis_for(searches: &mut Vec<Viterbi>, code: Code) -> Option<&mut Viterbi> {
    let at = searches.iter().position(|of| of.code() == code);
    if at.is_none() {
        searches.push(Viterbi::new(code)?);
    }
    let last = searches.len() - 1;
    searches.get_mut(at.unwrap_or(last))
}

/// Rounds a row scale to f16.
pub(super) fn round_to_f16(row: usize, scale: f32) -> Result<f32, FactoriseError> {
    let rounded = stored_scale(scale);
    if rounded.is_finite() {
        return Ok(rounded);
    }
    Err(CodecError::Scale {
        axis: "row",
        index: row,
        value: scale,
    }
    .into())
}

/// Divides by a scale; zero for a zero scale.
pub(super) fn divide_or_zero(x: f32, scale: f32) -> f32 {
    if scale > 0.0 { x / scale } else { 0.0 }
}

impl TileState {
    /// Returns the targets of a quad, `[rows + _, 4]`.
    fn quad_targets(&self, first: usize, metric: &QuadMetric) -> Vec<[f32; QUAD]> {
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
        columns: [f32; QUAD],
        diagonal: [f32; QUAD],
        part: &RowRange,
        end: &mut Option<(u16, u16)>,
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
        let rows = &self.scales;
        let sizes = rows
            .iter()
            .zip(&self.factors)
            .map(|(row, factor)| row * factor);
        let sizes: Vec<f32> = sizes.collect();
        // In units of the mean row, to stay within the range of f32.
        let mean = sizes.iter().map(|&row| f64::from(row).powi(2)).sum::<f64>();
        let mean = mean / sizes.len() as f64;
        let mean = mean.max(f64::MIN_POSITIVE).sqrt() as f32;
        let widest = (0..QUAD).map(|c| diagonal[c].sqrt() * columns[c]);
        let widest = widest.fold(f32::MIN_POSITIVE, f32::max);
        for (r, (&row, &counts)) in rows.iter().zip(&self.counts).enumerate() {
            for c in 0..QUAD {
                targets[r][c] = divide_or_zero(wanted[r][c], row * columns[c]);
                let size = (sizes[r] / mean * columns[c] / widest).powi(2);
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
                let first = search.seam_state(targets, Some(importance));
                (PathStart::At(first), first)
            }
            Some((first, last)) => (PathStart::After(last), first),
        };
        let closes = part.ends.then_some(last);
        let (targets, importance) = (&targets[..known], &importance[..known]);
        search.encode_part(targets, Some(importance), start, closes, &mut states);
        *end = Some((last, states.last().copied().unwrap_or(last)));
        states
    }

    fn store_values(
        &mut self,
        search: &Viterbi,
        states: &[u16],
        columns: [f32; QUAD],
        first: usize,
    ) {
        let states = states.as_chunks::<QUAD>().0;
        let width = QUAD.min(self.cols - first);
        for (r, (states, &row)) in states.iter().zip(&self.coded.row_scales[1]).enumerate() {
            let values = &mut self.values[r * self.cols + first..][..width];
            for c in 0..width {
                values[c] = row * columns[c] * search.value(states[c]);
            }
        }
    }

    fn carry_within_group(&mut self, feedback: &ErrorFeedback, coded: std::ops::Range<usize>) {
        let end = ((coded.start / GROUP_COLS + 1) * GROUP_COLS).min(self.cols);
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

    fn carry_to_later_groups(&mut self, feedback: &ErrorFeedback, band: usize) {
        let (start, behind) = (band * GROUP_COLS, (band + 1) * GROUP_COLS);
        if behind >= self.cols {
            return;
        }
        let mut errors = vec![0.0f32; self.rows * GROUP_COLS];
        for (r, errors) in errors.chunks_exact_mut(GROUP_COLS).enumerate() {
            let at = r * self.cols + start;
            let pairs = self.weights[at..][..GROUP_COLS]
                .iter()
                .zip(&self.values[at..]);
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
            MatRef::from_row_major_slice(&errors, self.rows, GROUP_COLS),
            factor.submatrix(start, behind, GROUP_COLS, n - behind),
            1.0,
            Par::Seq,
        );
    }
}
