//! Slabs of rows: the weights of a row and the optimizer's state for it lie side by side, so that a push touches one place in memory.

/// Rows of a slab. Few, because a slot holds a thousandth of a table and half a slab of each is empty.
const SLAB: usize = 32;

/// The rows of one table in one slot, by number.
#[derive(Debug, Clone)]
pub struct Rows {
    stride: usize,
    slabs: Vec<Box<[f32]>>,
    used: usize,
    free: Vec<u32>,
}

impl Rows {
    /// Hold rows of `stride` numbers: the weights, then the optimizer's state.
    pub fn new(stride: usize) -> Rows {
        Rows {
            stride,
            slabs: Vec::new(),
            used: 0,
            free: Vec::new(),
        }
    }

    /// Return how many rows there are.
    pub fn count(&self) -> usize {
        self.used - self.free.len()
    }

    /// Return the memory they take, in bytes.
    pub fn bytes(&self) -> usize {
        self.slabs.len() * (SLAB * self.stride * size_of::<f32>() + size_of::<Box<[f32]>>())
    }

    /// Return the number of a row that nobody uses; what it holds is undefined.
    pub fn take(&mut self) -> u32 {
        if let Some(row) = self.free.pop() {
            return row;
        }
        if self.used == self.slabs.len() * SLAB {
            self.slabs.push(vec![0.0; SLAB * self.stride].into());
        }
        self.used += 1;
        u32::try_from(self.used - 1).expect("fewer rows than an index can name")
    }

    /// Give a row back.
    pub fn give(&mut self, row: u32) {
        self.free.push(row);
    }

    /// Return a row.
    pub fn get(&self, row: u32) -> &[f32] {
        let (slab, at) = self.place(row);
        &self.slabs[slab][at..][..self.stride]
    }

    /// Return a row.
    pub fn get_mut(&mut self, row: u32) -> &mut [f32] {
        let (slab, at) = self.place(row);
        &mut self.slabs[slab][at..][..self.stride]
    }

    fn place(&self, row: u32) -> (usize, usize) {
        (row as usize / SLAB, row as usize % SLAB * self.stride)
    }
}
