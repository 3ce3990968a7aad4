//! Operations on queries, keys and values between projection and attention, fused into one launch.

use std::sync::Arc;

use htc_formats::model::RopePairs;
use htc_kernels::cuda::{Device, DeviceError, ops};

/// Largest head size of the fused kernel.
const SIZE: usize = 512;

#[derive(Debug)]
pub(super) enum Step<D: Device> {
    /// A bias of `numbers` numbers, added to each of `rows` rows.
    Bias {
        rows: usize,
        bias: Arc<D::Memory>,
        width: usize,
    },
    Norm {
        heads: usize,
        weight: Arc<D::Memory>,
        size: usize,
        epsilon: f32,
    },
    Turn {
        shape: ops::RopeShape,
        turn: Turn<D>,
    },
}

impl<D: Device> Step<D> {
    pub(super) fn launch(&self, device: &D, x: &D::Memory) -> Result<(), DeviceError> {
        match self {
            Step::Bias { rows, bias, width } => {
                let (rows, width) = (*rows, *width);
                ops::add_rows(device, ops::RowsShape { rows, cols: width }, x, bias)
            }
            Step::Norm {
                heads,
                weight,
                size,
                epsilon,
            } => {
                let (rows, width) = (*heads, *size);
                let shape = ops::RowsShape { rows, cols: width };
                ops::rms_norm(device, shape, x, weight, *epsilon, x)
            }
            Step::Turn { shape, turn } => {
                let sides = turn.sides.each_ref().map(|side| &**side);
                ops::rope(device, turn.which, *shape, x, sides)
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Turn<D: Device> {
    pub(super) which: RopePairs,
    pub(super) pairs: usize,
    pub(super) sides: [Arc<D::Memory>; 2],
}

impl<D: Device> Clone for Turn<D> {
    fn clone(&self) -> Self {
        Turn {
            which: self.which,
            pairs: self.pairs,
            sides: self.sides.each_ref().map(Arc::clone),
        }
    }
}

impl<D: Device> Turn<D> {
    fn is(&self, other: &Turn<D>) -> bool {
        let mut sides = self.sides.iter().zip(&other.sides);
        (self.which, self.pairs) == (other.which, other.pairs)
            && sides.all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

#[derive(Debug)]
struct Part<D: Device> {
    x: Arc<D::Memory>,
    /// Numbers in all rows.
    numbers: usize,
    bias: Option<(Arc<D::Memory>, usize)>,
    norm: Option<(Arc<D::Memory>, f32)>,
    turned: bool,
}

/// Operations on up to three buffers, each with an optional bias, norm and rotation in this order.
#[derive(Debug)]
pub(super) struct Heads<D: Device> {
    /// Rows and head size, if known.
    rows: Option<usize>,
    size: Option<usize>,
    turn: Option<Turn<D>>,
    parts: Vec<Part<D>>,
}

impl<D: Device> Default for Heads<D> {
    fn default() -> Self {
        Heads {
            rows: None,
            size: None,
            turn: None,
            parts: Vec::new(),
        }
    }
}

fn agrees(known: Option<usize>, found: usize) -> bool {
    known.is_none_or(|known| known == found)
}

impl<D: Device> Heads<D> {
    /// Returns the part of a buffer, adding one if the limit allows.
    fn part(&mut self, x: &Arc<D::Memory>, numbers: usize) -> Option<&mut Part<D>> {
        let found = self.parts.iter().position(|part| Arc::ptr_eq(&part.x, x));
        let index = match found {
            Some(index) => index,
            None if self.parts.len() < ops::MAX_HEADS_PARTS => {
                self.parts.push(Part {
                    x: Arc::clone(x),
                    numbers,
                    bias: None,
                    norm: None,
                    turned: false,
                });
                self.parts.len() - 1
            }
            None => return None,
        };
        let part = self.parts.get_mut(index);
        part.filter(|part| part.numbers == numbers)
    }

    /// Appends an operation on `x` and returns true if it fits; may leave a part without operations.
    pub(super) fn join(&mut self, x: &Arc<D::Memory>, step: &Step<D>) -> bool {
        match step {
            Step::Bias { rows, bias, width } => {
                let fits = agrees(self.rows, *rows);
                match self.part(x, rows * width) {
                    Some(part)
                        if fits && part.bias.is_none() && part.norm.is_none() && !part.turned =>
                    {
                        part.bias = Some((Arc::clone(bias), *width));
                        self.rows = Some(*rows);
                        true
                    }
                    _ => false,
                }
            }
            Step::Norm {
                heads,
                weight,
                size,
                epsilon,
            } => {
                let fits = *size <= SIZE && agrees(self.size, *size);
                match self.part(x, heads * size) {
                    Some(part) if fits && part.norm.is_none() && !part.turned => {
                        part.norm = Some((Arc::clone(weight), *epsilon));
                        self.size = Some(*size);
                        true
                    }
                    _ => false,
                }
            }
            Step::Turn { shape, turn } => {
                let known = self.turn.as_ref();
                let fits = shape.size <= SIZE
                    && agrees(self.size, shape.size)
                    && agrees(self.rows, shape.rows)
                    && known.is_none_or(|known| known.is(turn));
                match self.part(x, shape.rows * shape.heads * shape.size) {
                    Some(part) if fits && !part.turned => {
                        part.turned = true;
                        (self.rows, self.size) = (Some(shape.rows), Some(shape.size));
                        self.turn = Some(turn.clone());
                        true
                    }
                    _ => false,
                }
            }
        }
    }

    /// Returns true if keys and values of `n` rows can be appended in the same launch.
    pub(super) fn appends(
        &mut self,
        n: usize,
        of: ops::KvHeads,
        sides: [&Arc<D::Memory>; 2],
    ) -> bool {
        let fits = of.size <= SIZE && agrees(self.rows, n) && agrees(self.size, of.size);
        let own = !Arc::ptr_eq(sides[0], sides[1]);
        let numbers = n * of.heads * of.size;
        let fits = fits && own && sides.iter().all(|side| self.part(side, numbers).is_some());
        let whole = self.parts.iter().all(|part| part.divides(n, of.size));
        if fits && whole {
            (self.rows, self.size) = (Some(n), Some(of.size));
        }
        fits && whole
    }

    /// Executes all operations in one launch, appending keys and values as given by `to`.
    pub(super) fn launch<'a>(
        &'a self,
        device: &D,
        append: Option<(&ops::FaultEntries<D>, [usize; 2])>,
        to: impl Fn(&Arc<D::Memory>) -> Option<ops::AppendTarget<'a, D>>,
    ) -> Result<(), DeviceError> {
        let (rows, size) = (self.rows.unwrap_or(1), self.size.unwrap_or(1));
        let part = |part: &'a Part<D>| ops::HeadsPart {
            x: &*part.x,
            heads: part.numbers / (rows * size).max(1),
            bias: part.bias.as_ref().map(|(bias, _)| &**bias),
            norm: part
                .norm
                .as_ref()
                .map(|(weight, epsilon)| (&**weight, *epsilon)),
            rotate: part.turned,
            append: to(&part.x),
        };
        let parts: Vec<_> = self.parts.iter().map(part).collect();
        let turn = self.turn.as_ref().map(|turn| ops::RopeRows {
            pairing: turn.which,
            pairs: turn.pairs,
            cosines_and_sines: turn.sides.each_ref().map(|side| &**side),
        });
        let shape = ops::HeadsShape { rows, size };
        ops::prepare_heads(device, shape, turn.as_ref(), append, &parts)
    }

    /// Executes all operations: in one launch if their shape is known, else separately.
    pub(super) fn finish(&self, device: &D) -> Result<(), DeviceError> {
        let steps: usize = self.parts.iter().map(Part::steps).sum();
        let rows = self.rows.unwrap_or(1);
        let whole = |size| self.parts.iter().all(|part| part.divides(rows, size));
        if steps > 1 && self.size.is_some_and(whole) {
            return self.launch(device, None, |_| None);
        }
        for part in &self.parts {
            let size = self.size.unwrap_or(1).max(1);
            let bias = part.bias.as_ref().map(|(bias, width)| Step::Bias {
                rows: part.numbers / (*width).max(1),
                bias: Arc::clone(bias),
                width: *width,
            });
            let norm = part.norm.as_ref().map(|(weight, epsilon)| Step::Norm {
                heads: part.numbers / size,
                weight: Arc::clone(weight),
                size,
                epsilon: *epsilon,
            });
            let turn = self.turn.as_ref().filter(|_| part.turned);
            let turn = turn.map(|turn| Step::Turn {
                shape: ops::RopeShape {
                    rows,
                    heads: part.numbers / (rows * size).max(1),
                    size,
                    pairs: turn.pairs,
                },
                turn: turn.clone(),
            });
            for step in [bias, norm, turn].into_iter().flatten() {
                step.launch(device, &part.x)?;
            }
        }
        Ok(())
    }
}

impl<D: Device> Part<D> {
    fn steps(&self) -> usize {
        usize::from(self.bias.is_some())
            + usize::from(self.norm.is_some())
            + usize::from(self.turned)
    }

    /// Returns true if the numbers are rows of whole heads that match the bias.
    fn divides(&self, rows: usize, size: usize) -> bool {
        let row = rows * size;
        let of_row = |width: usize| width.is_multiple_of(size) && width * rows == self.numbers;
        row > 0
            && self.numbers.is_multiple_of(row)
            && self.bias.as_ref().is_none_or(|&(_, width)| of_row(width))
    }
}
