//! Slabs of rows: an id, its time, its weights and the optimizer's state for them lie side by side, so that a push touches one place in
//! memory.
use crate::ps::memory::arena::Block;
use crate::ps::memory::prefetch::prefetch;

/// Rows of a slab. Few, because a slot holds a thousandth of a table and half a slab of each is empty.
const SLAB: usize = 16;
/// Words before a row's numbers: the id's two halves and the time of the last push.
const HEAD: usize = 3;
const TIME: usize = 2;
/// Words of a cache line.
const LINE: usize = 16;

/// The rows of one table in one slot, by number.
#[derive(Debug, Clone)]
pub struct Rows {
    /// Words of a row.
    stride: usize,
    slabs: Vec<Block>,
    used: usize,
    free: Vec<u32>,
}

impl Rows {
    /// Hold rows of so many numbers: the weights, then the optimizer's state.
    pub fn new(numbers: usize) -> Rows {
        Rows {
            stride: HEAD + numbers,
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
        let slab = SLAB * self.stride * size_of::<u32>();
        self.slabs.len() * slab
            + self.slabs.capacity() * size_of::<Block>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// Return the number of a row that nobody uses, which is this id's now; its time and numbers are undefined.
    pub fn take(&mut self, id: u64) -> u32 {
        let row = self.free.pop().unwrap_or_else(|| {
            if self.used == self.slabs.len() * SLAB {
                self.slabs.push(Block::new(SLAB * self.stride));
            }
            self.used += 1;
            u32::try_from(self.used - 1).expect("fewer rows than an index can name")
        });
        let words = self.words_mut(row);
        (words[0], words[1]) = (id as u32, (id >> 32) as u32);
        row
    }

    /// Give a row back.
    pub fn give(&mut self, row: u32) {
        self.free.push(row);
    }

    /// Return whose a row is.
    #[inline]
    pub fn id(&self, row: u32) -> u64 {
        let words = self.words(row);
        u64::from(words[0]) | u64::from(words[1]) << 32
    }

    /// Return the time of the last push to a row.
    pub fn time(&self, row: u32) -> u32 {
        self.words(row)[TIME]
    }

    /// Return a row's numbers.
    #[inline]
    pub fn get(&self, row: u32) -> &[f32] {
        bytemuck::cast_slice(&self.words(row)[HEAD..])
    }

    /// Return a row's time and numbers.
    #[inline]
    pub fn get_mut(&mut self, row: u32) -> (&mut u32, &mut [f32]) {
        let (head, numbers) = self.words_mut(row).split_at_mut(HEAD);
        (&mut head[TIME], bytemuck::cast_slice_mut(numbers))
    }

    /// Begin to bring the head and the first numbers of a row near.
    #[inline]
    pub fn prefetch(&self, row: u32, numbers: usize) {
        let words = &self.words(row)[..HEAD + numbers];
        for line in words.chunks(LINE) {
            prefetch(&line[0]);
        }
        // A row begins anywhere in a line, so its end may lie in one more.
        prefetch(&words[words.len() - 1]);
    }

    #[inline]
    fn words(&self, row: u32) -> &[u32] {
        let (slab, at) = self.place(row);
        &self.slabs[slab][at..][..self.stride]
    }

    #[inline]
    fn words_mut(&mut self, row: u32) -> &mut [u32] {
        let (slab, at) = self.place(row);
        &mut self.slabs[slab][at..][..self.stride]
    }

    #[inline]
    fn place(&self, row: u32) -> (usize, usize) {
        (row as usize / SLAB, row as usize % SLAB * self.stride)
    }
}
