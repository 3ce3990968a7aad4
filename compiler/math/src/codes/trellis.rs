//! Path search in a trellis.

use htc_formats::bands::{Code, STATE_BITS, STATES, Trellis};

use crate::vectorised;

/// Weights on each side of the seam.
const SEAM: usize = 64;

const LANES: usize = 8;

type Values = [[f32; LANES]; STATES / LANES];

/// Start of a part of a sequence.
#[derive(Clone, Copy, Debug)]
pub enum PathStart {
    /// State of the first weight.
    At(u16),
    /// State of the weight before the first.
    After(u16),
}

/// Viterbi's algorithm (Viterbi 1967; Tseng et al. 2024, "QTIP"): finds the path of least weighted
/// squared error. Tail-biting: the bits of the first weights continue after the last; the state at
/// the seam is that of the best open path through the 64 weights on each side. Holds some
/// megabytes; reuse it.
#[derive(Clone, Debug)]
pub struct Viterbi {
    code: Code,
    values: Box<Values>,
    /// Least cost of a path up to each weight, by the bits that the next state keeps.
    costs: Vec<f32>,
    seam: (Vec<f32>, Vec<f32>, Vec<u16>),
}

impl Viterbi {
    /// Creates the search; `None` for codebooks.
    pub fn new(code: Code) -> Option<Viterbi> {
        let tables = Trellis::for_code(code)?;
        let value = |state| f32::from(tables.value(state));
        Some(Viterbi::with_values(code, value))
    }

    /// Creates a search with custom values.
    pub fn with_values(code: Code, value: impl Fn(usize) -> f32) -> Viterbi {
        let mut values = Box::new([[0.0; LANES]; STATES / LANES]);
        for (state, to) in values.as_flattened_mut().iter_mut().enumerate() {
            *to = value(state);
        }
        Viterbi {
            code,
            values,
            costs: Vec::new(),
            seam: Default::default(),
        }
    }

    /// Computes the states of a sequence, the four columns of a tile row by row. `targets` are in
    /// the units of the table's integers.
    ///
    /// # Panics
    /// Panics if lengths differ, or with less than twelve bits in all.
    pub fn encode(&mut self, targets: &[f32], importance: Option<&[f32]>, states: &mut [u16]) {
        assert_eq!(states.len(), targets.len());
        let first = self.seam_state(targets, importance);
        self.encode_part(
            targets,
            importance,
            PathStart::At(first),
            Some(first),
            states,
        );
    }

    /// Returns the state of the first weight on the best path around the seam.
    ///
    /// # Panics
    /// As [`encode`](Self::encode).
    pub fn seam_state(&mut self, targets: &[f32], importance: Option<&[f32]>) -> u16 {
        let n = targets.len();
        assert!(importance.is_none_or(|weights| weights.len() == n));
        assert!(n * self.bits() as usize >= STATE_BITS as usize);
        self.state_at_seam(targets, importance)
    }

    /// Fills `states` with the best path through all targets, of which the last may be a lookahead.
    /// `last` is the state of the first weight if the targets reach the end of the sequence.
    pub fn encode_part(
        &mut self,
        targets: &[f32],
        importance: Option<&[f32]>,
        start: PathStart,
        last: Option<u16>,
        states: &mut [u16],
    ) {
        let n = targets.len();
        assert!(states.len() <= n && importance.is_none_or(|weights| weights.len() == n));
        let keeps = last.map(|first| usize::from(first) & (self.state_classes() - 1));
        self.fill_costs(targets, importance, keeps);
        let first = match start {
            PathStart::At(first) => first,
            PathStart::After(state) => {
                cheapest(self, targets, importance, 0, self.successors(state.into())) as u16
            }
        };
        self.trace(targets, importance, first, states);
    }

    /// Returns the code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the value of a state.
    pub fn value(&self, state: u16) -> f32 {
        let state = usize::from(state) % STATES;
        self.values[state / LANES][state % LANES]
    }

    fn bits(&self) -> u32 {
        self.code.bits().into()
    }

    fn state_classes(&self) -> usize {
        STATES >> self.bits()
    }

    /// Returns the first state that may follow a state, and the distance between them.
    fn successors(&self, state: usize) -> [usize; 2] {
        [state >> self.bits(), self.state_classes()]
    }

    fn state_at_seam(&mut self, targets: &[f32], importance: Option<&[f32]>) -> u16 {
        let around = SEAM.min(targets.len() / 2);
        let (mut x, mut weights, mut path) = std::mem::take(&mut self.seam);
        let tail = targets.len() - around;
        x.clear();
        x.extend(targets[tail..].iter().chain(&targets[..around]));
        weights.clear();
        if let Some(window) = importance {
            weights.extend(window[tail..].iter().chain(&window[..around]));
        }
        path.resize(x.len(), 0);
        let window = importance.map(|_| &*weights);
        self.fill_costs(&x, window, None);
        let last = cheapest(self, &x, window, 0, [0, 1]) as u16;
        self.trace(&x, window, last, &mut path);
        let first = path.get(around).copied().unwrap_or(0);
        self.seam = (x, weights, path);
        first
    }

    /// Fills the costs from the last weight to the first. `keeps` are the bits that the last state
    /// takes over, if fixed.
    fn fill_costs(&mut self, targets: &[f32], importance: Option<&[f32]>, keeps: Option<usize>) {
        let kept = self.state_classes();
        self.costs.resize((targets.len() + 1) * kept, 0.0);
        let start = &mut self.costs[..kept];
        start.fill(if keeps.is_some() { f32::INFINITY } else { 0.0 });
        if let Some(at) = keeps {
            start[at] = 0.0;
        }
        let step = select_step(self.bits());
        for (i, &target) in targets.iter().rev().enumerate() {
            let weight = importance.map_or(1.0, |weights| weights[targets.len() - 1 - i]);
            let (before, after) = self.costs[i * kept..(i + 2) * kept].split_at_mut(kept);
            step(&self.values, terms(target, weight), before, after);
        }
    }

    #[inline(always)]
    fn cost(&self, targets: &[f32], importance: Option<&[f32]>, t: usize, state: usize) -> f32 {
        let before = (targets.len() - 1 - t) * self.state_classes();
        let weight = importance.map_or(1.0, |weights| weights[t]);
        let value = self.values[state / LANES][state % LANES];
        let kept = self.costs[before + (state >> self.bits())];
        weight_cost(terms(targets[t], weight), value, kept)
    }

    fn trace(&self, targets: &[f32], importance: Option<&[f32]>, first: u16, states: &mut [u16]) {
        let count = states.len();
        let mut state = usize::from(first);
        for (t, to) in states.iter_mut().enumerate() {
            *to = state as u16;
            if t + 1 == count {
                break;
            }
            state = cheapest(self, targets, importance, t + 1, self.successors(state));
        }
    }
}

vectorised! {
    /// Returns the state with the cheapest path from weight `t` on, of the first of `states` and those
    /// at multiples of the distance after it.
    fn cheapest(
        paths: &Viterbi,
        targets: &[f32],
        importance: Option<&[f32]>,
        t: usize,
        states: [usize; 2],
    ) -> usize {
        let [first, step] = states;
        let mut best = (f32::INFINITY, first);
        for state in (first..STATES).step_by(step) {
            let cost = paths.cost(targets, importance, t, state);
            if cost < best.0 {
                best = (cost, state);
            }
        }
        best.1
    }
}

/// Returns the error of a weight minus its squared target: two fused operations, bit-identical on
/// every processor.
#[inline(always)]
fn weight_cost([weight, slope]: [f32; 2], value: f32, cost: f32) -> f32 {
    value.mul_add(weight.mul_add(value, slope), cost)
}

fn terms(target: f32, weight: f32) -> [f32; 2] {
    [weight, -2.0 * weight * target]
}

/// Step of one weight, over least costs by kept bits.
type Step = fn(&Values, [f32; 2], &[f32], &mut [f32]);

fn select_step(bits: u32) -> Step {
    macro_rules! by_bits {
        ($step:ident) => {
            match bits {
                2 => $step::<2, { STATES >> 2 }>,
                3 => $step::<3, { STATES >> 3 }>,
                4 => $step::<4, { STATES >> 4 }>,
                _ => $step::<5, { STATES >> 5 }>,
            }
        };
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        return by_bits!(step_avx512);
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return by_bits!(step_avx2);
    }
    by_bits!(step)
}

/// Bit-identical to [`step`].
#[cfg(target_arch = "x86_64")]
fn step_avx2<const BITS: usize, const KEPT: usize>(
    values: &Values,
    terms: [f32; 2],
    before: &[f32],
    after: &mut [f32],
) {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma")]
    fn inner<const BITS: usize, const KEPT: usize>(
        values: &Values,
        [weight, slope]: [f32; 2],
        before: &[f32; KEPT],
        after: &mut [f32; KEPT],
    ) {
        let (weight, slope) = (_mm256_set1_ps(weight), _mm256_set1_ps(slope));
        let pairs = _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0);
        for chunk in 0..KEPT / LANES {
            let mut least = _mm256_set1_ps(f32::INFINITY);
            for j in 0..1 << BITS {
                let at = j * (KEPT / LANES) + chunk;
                let from = (at * LANES) >> BITS;
                // SAFETY: `at` is below STATES / LANES, so that `from` is below KEPT, and with two
                // bits even, so that `from + 1` is below KEPT, too.
                let (value, old) = unsafe {
                    let value = _mm256_loadu_ps(values.get_unchecked(at).as_ptr());
                    let old = before.as_ptr().add(from);
                    let old = match BITS {
                        2 => _mm256_permutevar_ps(
                            _mm256_castpd_ps(_mm256_set1_pd(old.cast::<f64>().read_unaligned())),
                            pairs,
                        ),
                        _ => _mm256_set1_ps(*old),
                    };
                    (value, old)
                };
                let cost = _mm256_fmadd_ps(value, _mm256_fmadd_ps(weight, value, slope), old);
                least = _mm256_min_ps(cost, least);
            }
            // SAFETY: `chunk` is below KEPT / LANES.
            unsafe { _mm256_storeu_ps(after.as_mut_ptr().add(chunk * LANES), least) };
        }
    }
    if let (Ok(before), Ok(after)) = (before.try_into(), after.try_into()) {
        // SAFETY: `select_step` returns this function only on processors with AVX2 and FMA.
        unsafe { inner::<BITS, KEPT>(values, terms, before, after) }
    }
}

/// Bit-identical to [`step`].
#[cfg(target_arch = "x86_64")]
fn step_avx512<const BITS: usize, const KEPT: usize>(
    values: &Values,
    terms: [f32; 2],
    before: &[f32],
    after: &mut [f32],
) {
    use std::arch::x86_64::*;

    const WIDE: usize = 16;

    #[target_feature(enable = "avx512f")]
    fn inner<const BITS: usize, const KEPT: usize>(
        values: &[f32; STATES],
        [weight, slope]: [f32; 2],
        before: &[f32; KEPT],
        after: &mut [f32; KEPT],
    ) {
        let (weight, slope) = (_mm512_set1_ps(weight), _mm512_set1_ps(slope));
        // Each of the costs before belongs to 2^BITS states one after another.
        let fours = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        let eights = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
        for chunk in (0..KEPT).step_by(WIDE) {
            let mut least = _mm512_set1_ps(f32::INFINITY);
            for j in 0..1 << BITS {
                let at = j * KEPT + chunk;
                // SAFETY: `at` is a multiple of 16 below STATES, so that the costs from
                // `at >> BITS` on, four with two bits and two with three, are below KEPT.
                let (value, old) = unsafe {
                    let value = _mm512_loadu_ps(values.as_ptr().add(at));
                    let old = before.as_ptr().add(at >> BITS);
                    let old = match BITS {
                        2 => {
                            let four = _mm512_castps128_ps512(_mm_loadu_ps(old));
                            _mm512_permutexvar_ps(fours, four)
                        }
                        3 => {
                            let two = _mm_set1_pd(old.cast::<f64>().read_unaligned());
                            _mm512_permutexvar_ps(
                                eights,
                                _mm512_castps128_ps512(_mm_castpd_ps(two)),
                            )
                        }
                        _ => _mm512_set1_ps(*old),
                    };
                    (value, old)
                };
                let cost = _mm512_fmadd_ps(value, _mm512_fmadd_ps(weight, value, slope), old);
                least = _mm512_min_ps(cost, least);
            }
            // SAFETY: `chunk` is a multiple of 16 below KEPT, itself a multiple of 16.
            unsafe { _mm512_storeu_ps(after.as_mut_ptr().add(chunk), least) };
        }
    }
    let values = values.as_flattened().try_into();
    if let (Ok(values), Ok(before), Ok(after)) = (values, before.try_into(), after.try_into()) {
        // SAFETY: `select_step` returns this function only on processors with AVX-512.
        unsafe { inner::<BITS, KEPT>(values, terms, before, after) }
    }
}

#[inline(always)]
fn step<const BITS: usize, const KEPT: usize>(
    values: &Values,
    terms: [f32; 2],
    before: &[f32],
    after: &mut [f32],
) {
    let ([before], []) = before.as_chunks::<KEPT>() else {
        return;
    };
    let (after, _) = after.as_chunks_mut::<LANES>();
    for (chunk, after) in after.iter_mut().enumerate().take(KEPT / LANES) {
        let mut least = [f32::INFINITY; LANES];
        for j in 0..1 << BITS {
            let at = j * (KEPT / LANES) + chunk;
            let values = &values[at];
            // A state takes over the kept bits of the previous class.
            let old: [f32; LANES] = if BITS >= 3 {
                [before[(at * LANES) >> BITS]; LANES]
            } else {
                std::array::from_fn(|lane| before[(at * LANES + lane) >> BITS])
            };
            for lane in 0..LANES {
                let cost = weight_cost(terms, values[lane], old[lane]);
                least[lane] = if cost < least[lane] {
                    cost
                } else {
                    least[lane]
                };
            }
        }
        *after = least;
    }
}

#[cfg(test)]
mod tests;
