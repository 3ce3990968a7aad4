//! Values of a block by index, and their gradients.

use faer::Accum;

use super::number::{Number, resized};

/// Index of a value, which is written once in a pass. Value 0 is the residual stream before the
/// block; steps read values of lower indices than those they write.
pub(super) type Value = usize;

/// Values of a forward pass. Their memory is kept from one pass to the next.
#[derive(Debug, Default)]
pub(super) struct Values<T>(Vec<Vec<T>>);

impl<T: Number> Values<T> {
    /// Starts a pass with `count` values on the residual stream `x`.
    pub fn begin(&mut self, count: usize, x: &[T]) {
        self.0.resize_with(count, Vec::new);
        resized(&mut self.0[0], x.len()).copy_from_slice(x);
    }

    /// Returns a value.
    pub fn get(&self, value: Value) -> &[T] {
        &self.0[value]
    }

    /// Lets `compute` write the values `to`, of `numbers` each, from earlier ones.
    pub fn write<const N: usize>(
        &mut self,
        to: [Value; N],
        numbers: [usize; N],
        compute: impl FnOnce(&Self, [&mut [T]; N]),
    ) {
        let mut buffers = to.map(|value| std::mem::take(&mut self.0[value]));
        for (buffer, numbers) in buffers.iter_mut().zip(numbers) {
            resized(buffer, numbers);
        }
        compute(self, buffers.each_mut().map(Vec::as_mut_slice));
        for (value, buffer) in to.into_iter().zip(buffers) {
            self.0[value] = buffer;
        }
    }

    /// Returns the numbers of all values.
    #[cfg(test)]
    pub fn numbers(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

/// Gradients with respect to the values of a backward pass. Their memory is kept from one pass to
/// the next.
///
/// The gradient of a value is the sum over all steps that read it. It remains after the pass.
#[derive(Debug, Default)]
pub(super) struct ValueGradients<T> {
    gradients: Vec<Vec<T>>,
    /// Whether a value has received a gradient in this pass.
    begun: Vec<bool>,
}

impl<T: Number> ValueGradients<T> {
    /// Starts a pass over `count` values.
    pub fn begin(&mut self, count: usize) {
        self.gradients.resize_with(count, Vec::new);
        self.begun.clear();
        self.begun.resize(count, false);
    }

    /// Returns the gradient of a value.
    pub fn get(&self, value: Value) -> &[T] {
        &self.gradients[value]
    }

    /// Calls `pass` with the gradient of a value that was written by a step, to be passed to the
    /// values that the step read.
    pub fn pass(&mut self, value: Value, pass: impl FnOnce(&[T], &mut Self)) {
        let gradient = std::mem::take(&mut self.gradients[value]);
        pass(&gradient, self);
        self.gradients[value] = gradient;
    }

    /// Returns the gradient of a value, and whether a contribution replaces it or is added to it.
    pub fn contribution(&mut self, value: Value, numbers: usize) -> (&mut [T], Accum) {
        let accumulate = if std::mem::replace(&mut self.begun[value], true) {
            Accum::Add
        } else {
            Accum::Replace
        };
        (resized(&mut self.gradients[value], numbers), accumulate)
    }

    /// Returns the gradient of a value, to add a contribution to.
    pub fn sum(&mut self, value: Value, numbers: usize) -> &mut [T] {
        let (gradient, accumulate) = self.contribution(value, numbers);
        if accumulate == Accum::Replace {
            gradient.fill(T::default());
        }
        gradient
    }

    /// Adds the contributions that `compute` writes to the gradients of the values `to`, of
    /// `numbers` each.
    pub fn add<const N: usize>(
        &mut self,
        to: [Value; N],
        numbers: [usize; N],
        compute: impl FnOnce([&mut [T]; N]),
    ) {
        // The first contribution is written in place.
        let first = to.map(|value| !std::mem::replace(&mut self.begun[value], true));
        let mut parts = [const { Vec::new() }; N];
        for (index, part) in parts.iter_mut().enumerate() {
            if first[index] {
                *part = std::mem::take(&mut self.gradients[to[index]]);
            }
            resized(part, numbers[index]);
        }
        compute(parts.each_mut().map(Vec::as_mut_slice));
        for (index, part) in parts.into_iter().enumerate() {
            let gradient = &mut self.gradients[to[index]];
            if first[index] {
                *gradient = part;
            } else {
                let pairs = gradient.iter_mut().zip(part);
                pairs.for_each(|(sum, part)| *sum += part);
            }
        }
    }

    /// Returns the numbers of all gradients.
    #[cfg(test)]
    pub fn numbers(&self) -> usize {
        self.gradients.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests;
