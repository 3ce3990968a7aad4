//! Mean and second moment of a stream of vectors.

use faer::{Mat, MatRef};
use htc_kernels::cpu::{COLUMN_STEP, Cpu, MAX_COLUMNS};

use crate::math::{Algebra, FactoriseError, GramAccumulator};

/// Side of the tiles. One thread sums a tile, so that the sums do not depend on the number of
/// threads.
const TILE: usize = MAX_COLUMNS;

const TILES_PER_TASK: usize = 4;

/// Summed in float32 first.
const FLOAT32_ROWS: usize = 512;

const CACHE_LINE_FLOATS: usize = 16;

/// `Σ 1`, `Σ x` and the lower triangle of `Σ x xᵀ`, in float64. On the CPU products are summed in
/// float32 over [`FLOAT32_ROWS`] vectors.
#[derive(Debug)]
pub struct MomentSums {
    order: usize,
    count: u64,
    weight: f64,
    strips: Vec<Strip>,
    products: Products,
}

#[derive(Debug)]
enum Products {
    Tiles(Vec<Tile>),
    Device(Result<Box<dyn GramAccumulator>, FactoriseError>),
}

#[derive(Clone, Debug)]
struct Strip {
    first: usize,
    /// Zero-padded to a multiple of [`COLUMN_STEP`].
    width: usize,
    padded: usize,
    /// `[n, padded]` from `start` on.
    numbers: Vec<f32>,
    /// Aligned to a cache line.
    start: usize,
    sum: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Tile {
    row: usize,
    col: usize,
    /// `[padded, padded]` of the two strips.
    values: Vec<f64>,
}

/// Returns the index of the `i`-th diagonal element in a lower triangle, row by row.
pub(crate) fn diagonal_index(i: usize) -> usize {
    i * (i + 3) / 2
}

impl MomentSums {
    pub fn new(order: usize) -> Self {
        let strips = strips(order);
        let products = Products::Tiles(tiles(&strips));
        MomentSums::empty(order, strips, products)
    }

    /// Products are on the device of `algebra`, if given, until [`fetch`](Self::fetch).
    pub fn with_algebra(
        algebra: Option<&dyn Algebra>,
        order: usize,
    ) -> Result<Self, FactoriseError> {
        let Some(algebra) = algebra else {
            return Ok(MomentSums::new(order));
        };
        let products = Products::Device(Ok(algebra.new_gram(order)?));
        Ok(MomentSums::empty(order, strips(order), products))
    }

    fn empty(order: usize, strips: Vec<Strip>, products: Products) -> Self {
        MomentSums {
            order,
            count: 0,
            weight: 0.0,
            strips,
            products,
        }
    }

    /// Fetches the products from the device.
    pub fn fetch(&mut self) -> Result<(), FactoriseError> {
        let here = Products::Tiles(Vec::new());
        let sums = match std::mem::replace(&mut self.products, here) {
            Products::Device(sums) => sums?,
            products => {
                self.products = products;
                return Ok(());
            }
        };
        let mut tiles = tiles(&self.strips);
        for (index, strip) in self.strips.iter().enumerate() {
            // All columns at once would double the memory.
            let columns = sums.columns(strip.first..strip.first + strip.width)?;
            for tile in tiles.iter_mut().filter(|tile| tile.col == index) {
                tile.take(&self.strips[tile.row], strip, &columns);
            }
        }
        self.products = Products::Tiles(tiles);
        Ok(())
    }

    /// Checks for device errors so far.
    pub fn check(&self) -> Result<(), FactoriseError> {
        match &self.products {
            Products::Device(Err(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Returns the bytes of the sums of vectors of `order` numbers, including the current vectors.
    pub fn bytes(order: usize) -> u64 {
        let strips = order.div_ceil(TILE) as u64;
        let tile = (TILE.min(order).next_multiple_of(COLUMN_STEP)) as u64;
        let tiles = strips * (strips + 1) / 2;
        8 * tiles * tile * tile + 4 * FLOAT32_ROWS as u64 * strips * tile
    }

    /// Adds the rows of `x [n, order]`.
    pub fn add(&mut self, cpu: &Cpu, x: &[f32]) {
        let (order, pool) = (self.order.max(1), cpu.pool());
        for rows in x.chunks(FLOAT32_ROWS * order) {
            let rows = rows.chunks_exact(order);
            self.count += rows.len() as u64;
            self.weight += rows.len() as f64;
            pool.chunks_mut(&mut self.strips, 1, |_, strip| {
                strip[0].take(cpu, rows.clone())
            });
            match &mut self.products {
                Products::Tiles(tiles) => {
                    let strips = &self.strips;
                    pool.chunks_mut(tiles, TILES_PER_TASK, |_, tiles| {
                        tiles.iter_mut().for_each(|tile| tile.add(cpu, strips));
                    });
                }
                Products::Device(sums) => add_on_device(sums, rows.clone(), order),
            }
        }
    }

    /// Adds vectors of `order` numbers on the calling thread.
    pub fn add_on_this_thread<'x>(
        &mut self,
        cpu: &Cpu,
        mut vectors: impl Iterator<Item = &'x [f32]>,
    ) {
        let mut rows = Vec::with_capacity(FLOAT32_ROWS);
        loop {
            rows.clear();
            rows.extend(vectors.by_ref().take(FLOAT32_ROWS));
            if rows.is_empty() {
                return;
            }
            self.count += rows.len() as u64;
            self.weight += rows.len() as f64;
            let strips = self.strips.iter_mut();
            strips.for_each(|strip| strip.take(cpu, rows.iter().copied()));
            match &mut self.products {
                Products::Tiles(tiles) => {
                    let tiles = tiles.iter_mut();
                    tiles.for_each(|tile| tile.add(cpu, &self.strips));
                }
                Products::Device(sums) => add_on_device(sums, rows.iter().copied(), self.order),
            }
        }
    }

    /// Multiplies the weight of all vectors so far by `factor`; later ones have weight 1.
    pub fn reweigh(&mut self, factor: f64) {
        self.weight *= factor;
        let sums = self.strips.iter_mut().flat_map(|strip| &mut strip.sum);
        sums.for_each(|sum| *sum *= factor);
        match &mut self.products {
            Products::Tiles(tiles) => {
                let values = tiles.iter_mut().flat_map(|tile| &mut tile.values);
                values.for_each(|sum| *sum *= factor);
            }
            Products::Device(on_device) => {
                if let Ok(sums) = on_device
                    && let Err(error) = sums.scale(factor)
                {
                    *on_device = Err(error);
                }
            }
        }
    }

    pub fn fits_float32(&self) -> bool {
        let limit = f64::from(f32::MAX) * self.weight();
        // False for NaN, too.
        let fits = |value: &f64| value.abs() <= limit;
        let sums = self.strips.iter().flat_map(|strip| &strip.sum);
        sums.into_iter().all(fits)
            && match &self.products {
                Products::Tiles(tiles) => tiles.iter().flat_map(|tile| &tile.values).all(fits),
                Products::Device(_) => false,
            }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns `E[x]`, zero without vectors.
    pub fn mean(&self) -> Vec<f64> {
        let sums = self.strips.iter().flat_map(|s| &s.sum[..s.width]);
        sums.map(|sum| sum / self.weight()).collect()
    }

    /// Returns the lower triangle of `E[x xᵀ]`, row by row. Sums on a device must be
    /// [fetched](Self::fetch) before.
    pub fn second_moment(&self) -> Vec<f64> {
        let mut packed = vec![0.0; self.order * (self.order + 1) / 2];
        for tile in self.fetched_tiles() {
            let (rows, cols) = (&self.strips[tile.row], &self.strips[tile.col]);
            let values = tile.values.chunks_exact(cols.padded);
            for (i, values) in values.take(rows.width).enumerate() {
                let row = rows.first + i;
                let start = row * (row + 1) / 2 + cols.first;
                let count = cols.width.min(row + 1 - cols.first);
                for (packed, value) in packed[start..][..count].iter_mut().zip(values) {
                    *packed = value / self.weight();
                }
            }
        }
        packed
    }

    /// Returns the trace of `E[x xᵀ]`. Sums on a device must be [fetched](Self::fetch) before.
    pub fn trace(&self) -> f64 {
        let tiles = self.fetched_tiles().iter();
        let diagonal = tiles.filter(|tile| tile.row == tile.col).flat_map(|tile| {
            let strip = &self.strips[tile.row];
            let step = strip.padded + 1;
            tile.values.iter().step_by(step).take(strip.width)
        });
        diagonal.map(|value| value / self.weight()).sum()
    }

    fn fetched_tiles(&self) -> &[Tile] {
        match &self.products {
            Products::Tiles(tiles) => tiles,
            Products::Device(_) => &[],
        }
    }

    /// Returns the sum of the vectors' weights; 1 without vectors.
    pub fn weight(&self) -> f64 {
        match self.count {
            0 => 1.0,
            _ => self.weight,
        }
    }
}

/// An error replaces the sums.
fn add_on_device<'x>(
    sums: &mut Result<Box<dyn GramAccumulator>, FactoriseError>,
    vectors: impl Iterator<Item = &'x [f32]>,
    order: usize,
) {
    if let Ok(on_device) = sums {
        let numbers: Vec<f64> = vectors.flatten().map(|&x| f64::from(x)).collect();
        let rows = MatRef::from_row_major_slice(&numbers, numbers.len() / order.max(1), order);
        if let Err(error) = on_device.add_rows(1.0, rows) {
            *sums = Err(error);
        }
    }
}

fn strips(order: usize) -> Vec<Strip> {
    let strip = |first| {
        let width = TILE.min(order - first);
        let padded = width.next_multiple_of(COLUMN_STEP);
        Strip {
            first,
            width,
            padded,
            numbers: Vec::new(),
            start: 0,
            sum: vec![0.0; padded],
        }
    };
    (0..order).step_by(TILE).map(strip).collect()
}

fn tiles(strips: &[Strip]) -> Vec<Tile> {
    let tile = |(row, col): (usize, usize)| Tile {
        row,
        col,
        values: vec![0.0; strips[row].padded * strips[col].padded],
    };
    let all = (0..strips.len()).flat_map(|row| (0..=row).map(move |col| (row, col)));
    all.map(tile).collect()
}

impl Strip {
    fn take<'x>(&mut self, cpu: &Cpu, vectors: impl ExactSizeIterator<Item = &'x [f32]>) {
        let count = vectors.len() * self.padded;
        self.numbers.resize(count + CACHE_LINE_FLOATS, 0.0);
        let padding = self
            .numbers
            .as_ptr()
            .align_offset(size_of::<f32>() * CACHE_LINE_FLOATS);
        self.start = padding.min(CACHE_LINE_FLOATS);
        let numbers = &mut self.numbers[self.start..][..count];
        for (to, vector) in numbers.chunks_exact_mut(self.padded).zip(vectors) {
            let (to, zeros) = to.split_at_mut(self.width);
            to.copy_from_slice(&vector[self.first..][..self.width]);
            zeros.fill(0.0);
        }
        let added = cpu.add_rows(numbers, &mut self.sum);
        debug_assert!(added.is_ok(), "rows are as long as their sum");
    }

    fn numbers(&self) -> &[f32] {
        &self.numbers[self.start..self.start + self.numbers.len().saturating_sub(CACHE_LINE_FLOATS)]
    }
}

impl Tile {
    fn take(&mut self, rows: &Strip, cols: &Strip, columns: &Mat<f64>) {
        let values = self.values.chunks_exact_mut(cols.padded);
        for (row, values) in (rows.first..rows.first + rows.width).zip(values) {
            let below = (0..cols.width).take_while(|col| cols.first + col <= row);
            for (to, col) in values.iter_mut().zip(below) {
                *to = columns[(row, col)];
            }
        }
    }

    fn add(&mut self, cpu: &Cpu, strips: &[Strip]) {
        let (a, b) = (&strips[self.row], &strips[self.col]);
        let n = a.numbers().len() / a.padded;
        let shape = [a.padded, b.padded];
        let added = cpu.add_cross_products(n, a.numbers(), b.numbers(), shape, &mut self.values);
        debug_assert!(added.is_ok(), "a tile is made for its strips");
    }
}

#[cfg(test)]
mod tests;
