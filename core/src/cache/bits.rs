//! Which pages of the index have changed.

/// A set of small numbers.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
    /// Words before this one are empty.
    from: usize,
}

impl Bits {
    pub fn new(count: usize) -> Bits {
        Bits { words: vec![0; count.div_ceil(64)], from: 0 }
    }

    pub fn set(&mut self, n: usize) {
        self.words[n / 64] |= 1 << (n % 64);
        self.from = self.from.min(n / 64);
    }

    /// Takes the least out.
    pub fn pop(&mut self) -> Option<usize> {
        while let Some(word) = self.words.get_mut(self.from) {
            if *word != 0 {
                let bit = word.trailing_zeros() as usize;
                *word &= *word - 1;
                return Some(self.from * 64 + bit);
            }
            self.from += 1;
        }
        None
    }
}
