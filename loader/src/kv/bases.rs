//! Orthonormal bases of the keys and values of every kv head.

use super::KvShape;
use super::kind::KvRank;
use super::oja;
use crate::error::ExecError;
use crate::kv_bases;

/// Tolerance for rounding to float16.
const ORTHONORMALITY_TOLERANCE: f32 = 1e-3;

const SIDES: [&str; 2] = ["keys", "values"];

/// Bases of keys, or of values.
#[derive(Clone, Debug, PartialEq)]
pub struct BasisSide {
    /// `[layers, kv_heads, head_size, head_size]`: one component per row, in decreasing order of
    /// energy.
    pub components: Vec<f32>,
    /// `[layers, kv_heads, head_size]`: energies of the components.
    pub energies: Vec<f32>,
}

/// Orthonormal bases of keys and values, in decreasing order of energy: eigenvectors of calibration
/// second moments, for keys of keys and queries together (OjaKV, appendix A.2).
#[derive(Clone, Debug, PartialEq)]
pub struct KvBases {
    shape: KvShape,
    sides: [BasisSide; 2],
}

/// Orthonormalises the bases of an artifact, rounded to float16, by a QR decomposition.
impl TryFrom<&kv_bases::StoredKvBases> for KvBases {
    type Error = ExecError;

    /// # Errors
    /// As [`KvBases::new`], and [`ExecError::KvBasesShape`] if heads differ in shape.
    fn try_from(stored: &kv_bases::StoredKvBases) -> Result<Self, ExecError> {
        let size = stored.head_size;
        let shape = KvShape {
            layers: stored.layers.len(),
            kv_heads: stored.layers.first().map_or(0, Vec::len),
            head_size: size,
        };
        for layer in &stored.layers {
            check_equal("kv heads", shape.kv_heads, layer.len())?;
            for basis in layer.iter().flat_map(|head| [&head.keys, &head.values]) {
                let square = size.saturating_mul(size);
                check_equal("numbers of components", square, basis.components.len())?;
                check_equal("energies", size, basis.energies.len())?;
            }
        }
        let of_side = |pick: fn(&kv_bases::HeadBases) -> &kv_bases::Basis| {
            let bases = || stored.layers.iter().flatten().map(pick);
            let components = bases().flat_map(|basis| {
                let mut rows: Vec<f64> = basis.components.iter().map(|&x| x.into()).collect();
                oja::orthonormalise(&mut rows, size.max(1));
                rows.into_iter().map(|x| x as f32)
            });
            BasisSide {
                components: components.collect(),
                energies: bases().flat_map(|basis| &basis.energies).copied().collect(),
            }
        };
        KvBases::new(
            shape,
            [of_side(|head| &head.keys), of_side(|head| &head.values)],
        )
    }
}

fn check_equal(what: &'static str, expected: usize, found: usize) -> Result<(), ExecError> {
    if expected == found {
        Ok(())
    } else {
        Err(ExecError::KvBasesShape {
            what,
            expected,
            found,
        })
    }
}

/// Leading components of the bases of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerBases {
    /// Number of kv heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_size: usize,
    /// Ranks of keys and of values.
    pub ranks: [usize; 2],
    /// `[kv_heads, rank, head_size]` of keys and of values, one component per row.
    pub components: [Vec<f32>; 2],
}

impl LayerBases {
    /// Returns the components `[rank, head_size]` of a head, of keys (side 0) or values (side 1).
    pub fn head(&self, side: usize, head: usize) -> &[f32] {
        let len = self.ranks[side] * self.head_size;
        &self.components[side][head * len..][..len]
    }
}

impl KvBases {
    /// Creates the bases of a model of this shape.
    ///
    /// # Errors
    /// [`ExecError::KvBasesShape`] for wrong lengths; [`ExecError::KvBases`] for numbers that are not
    /// finite, components not orthonormal within 1e-3, or energies that increase.
    pub fn new(shape: KvShape, sides: [BasisSide; 2]) -> Result<Self, ExecError> {
        let size = shape.head_size;
        let heads = shape.layers.checked_mul(shape.kv_heads);
        let energies = heads.and_then(|heads| heads.checked_mul(size));
        let components = energies.and_then(|energies| energies.checked_mul(size));
        for side in &sides {
            for (what, expected, found) in [
                ("numbers of components", components, side.components.len()),
                ("energies", energies, side.energies.len()),
            ] {
                if expected != Some(found) {
                    return Err(ExecError::KvBasesShape {
                        what,
                        expected: expected.unwrap_or(usize::MAX),
                        found,
                    });
                }
            }
        }
        for (name, side) in SIDES.into_iter().zip(&sides) {
            let heads = side.components.chunks_exact((size * size).max(1));
            let energies = side.energies.chunks_exact(size.max(1));
            for (index, (components, energies)) in heads.zip(energies).enumerate() {
                check_head(components, energies).map_err(|problem| ExecError::KvBases {
                    layer: index / shape.kv_heads,
                    head: index % shape.kv_heads,
                    side: name,
                    problem,
                })?;
            }
        }
        Ok(KvBases { shape, sides })
    }

    /// Returns the shape of the model.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Returns the bases of keys and of values.
    pub fn sides(&self) -> &[BasisSide; 2] {
        &self.sides
    }

    pub(super) fn check_shape(&self, model: KvShape) -> Result<(), ExecError> {
        let found = self.shape;
        for (what, expected, found) in [
            ("layers", model.layers, found.layers),
            ("kv heads", model.kv_heads, found.kv_heads),
            ("numbers of a head", model.head_size, found.head_size),
        ] {
            check_equal(what, expected, found)?;
        }
        Ok(())
    }

    pub(super) fn rank(&self, layer: usize, side: usize, rank: KvRank) -> usize {
        let (heads, size) = (self.shape.kv_heads, self.shape.head_size);
        let of_layer = &self.sides[side].energies[layer * heads * size..][..heads * size];
        rank.resolve(size, of_layer.chunks_exact(size.max(1)))
    }

    pub(super) fn layer(&self, layer: usize, ranks: [usize; 2]) -> LayerBases {
        let (kv_heads, head_size) = (self.shape.kv_heads, self.shape.head_size);
        let square = head_size * head_size;
        let components = [0, 1].map(|side| {
            let of_layer = &self.sides[side].components[layer * kv_heads * square..];
            let heads = of_layer.chunks_exact(square.max(1)).take(kv_heads);
            let leading = heads.flat_map(|head| &head[..ranks[side] * head_size]);
            leading.copied().collect()
        });
        LayerBases {
            kv_heads,
            head_size,
            ranks,
            components,
        }
    }
}

fn check_head(components: &[f32], energies: &[f32]) -> Result<(), String> {
    let size = energies.len();
    if let Some(bad) = energies.iter().find(|e| !(e.is_finite() && **e >= 0.0)) {
        return Err(format!("an energy is {bad}"));
    }
    // Eigenvalues may be out of order by rounding.
    let slack = 1e-3 * energies.iter().fold(0.0, |most: f32, e| most.max(*e));
    if energies.windows(2).any(|pair| pair[1] > pair[0] + slack) {
        return Err("energies do not decrease".to_owned());
    }
    let rows: Vec<&[f32]> = components.chunks_exact(size.max(1)).collect();
    for (i, a) in rows.iter().enumerate() {
        for (j, b) in rows[..=i].iter().enumerate() {
            let product: f32 = a.iter().zip(*b).map(|(a, b)| a * b).sum();
            let expected = if i == j { 1.0 } else { 0.0 };
            let error = (product - expected).abs();
            if error.is_nan() || error > ORTHONORMALITY_TOLERANCE {
                return Err(format!(
                    "the product of components {j} and {i} is {product}, not {expected}"
                ));
            }
        }
    }
    Ok(())
}
