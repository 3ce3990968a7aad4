//! Constant-time lookup of substrings, so that long symbols do not cost quadratic time.
//!
//! The hash of any substring is computed from those of two prefixes (Karp and Rabin 1987):
//! polynomials over the bytes, modulo the prime 2^61 - 1, at two random points, drawn anew by each
//! process. Texts are compared by these 122 bits and their length alone: the chance of any
//! collision in a text of a gigabyte is below 2^-30.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

const PRIME: u64 = (1 << 61) - 1;

const CACHED_POWERS: usize = 1 << 12;

type Hash = [u64; 2];

#[derive(Clone, Debug)]
pub(super) struct SubstringIds {
    ids: HashMap<(Hash, usize), u32>,
    points: Hash,
    /// Powers of the points, from 0.
    powers: Vec<Hash>,
    longest: usize,
}

#[derive(Debug, Default)]
pub(super) struct PrefixHashes(Vec<Hash>);

impl SubstringIds {
    /// Ids and their distinct texts.
    pub(super) fn new<'a>(texts: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let random = RandomState::new();
        // At 0 and 1, permutations of the same bytes collide.
        let point = |which: u8| 2 + random.hash_one(which) % (PRIME - 2);
        let points = [point(0), point(1)];
        let mut powers = vec![[1, 1]];
        for at in 0..CACHED_POWERS {
            let [a, b] = powers[at];
            powers.push([mul_mod(a, points[0]), mul_mod(b, points[1])]);
        }
        let mut ids = HashMap::with_capacity(texts.size_hint().0);
        let mut longest = 0;
        for (text, id) in texts {
            let hash = text
                .bytes()
                .fold([0, 0], |hash, byte| extend_hash(hash, byte, points));
            ids.insert((hash, text.len()), id);
            longest = longest.max(text.len());
        }
        SubstringIds {
            ids,
            points,
            powers,
            longest,
        }
    }

    pub(super) fn prepare(&self, text: &str, prefixes: &mut PrefixHashes) {
        prefixes.0.clear();
        prefixes.0.reserve(text.len() + 1);
        let mut hash = [0, 0];
        prefixes.0.push(hash);
        for byte in text.bytes() {
            hash = extend_hash(hash, byte, self.points);
            prefixes.0.push(hash);
        }
    }

    /// `start .. end` are bytes of the prepared text.
    pub(super) fn id(&self, prefixes: &PrefixHashes, start: usize, end: usize) -> Option<u32> {
        let len = end - start;
        if len > self.longest {
            return None;
        }
        let (from, to) = (prefixes.0[start], prefixes.0[end]);
        let power = self.power(len);
        let at = |i: usize| {
            let hash = to[i] + PRIME - mul_mod(from[i], power[i]);
            if hash >= PRIME { hash - PRIME } else { hash }
        };
        self.ids.get(&([at(0), at(1)], len)).copied()
    }

    fn power(&self, exponent: usize) -> Hash {
        if let Some(power) = self.powers.get(exponent) {
            return *power;
        }
        let raised = |point: u64| {
            let (mut power, mut square, mut rest) = (1, point, exponent);
            while rest > 0 {
                if rest % 2 == 1 {
                    power = mul_mod(power, square);
                }
                square = mul_mod(square, square);
                rest /= 2;
            }
            power
        };
        self.points.map(raised)
    }
}

/// Bytes are shifted by 1, so that zeros count.
fn extend_hash(hash: Hash, byte: u8, points: Hash) -> Hash {
    let at = |i: usize| {
        let sum = mul_mod(hash[i], points[i]) + u64::from(byte) + 1;
        if sum >= PRIME { sum - PRIME } else { sum }
    };
    [at(0), at(1)]
}

fn mul_mod(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    // 2^61 is 1.
    let sum = (product as u64 & PRIME) + (product >> 61) as u64;
    if sum >= PRIME { sum - PRIME } else { sum }
}

#[cfg(test)]
mod tests;
