//! What a slot would be if a rule were broken: the simulator calls these at the moment, and has to find out.
use super::{Data, Server, Slot, Told};
use crate::ps::stamps::Stamps;

impl Slot {
    /// Say "held" of what no other server may have (against rule R4).
    pub fn forget_pending(&mut self) {
        self.pending.clear();
    }

    /// Take what was sent to the backup for accepted (against rule R4).
    pub fn trust_backup(&mut self, told: &mut Vec<Told>) {
        let backup = self.entry.and_then(|entry| entry.backup);
        let version = self.data.as_ref().map_or(0, |data| data.version);
        for one in &mut self.required {
            if Some(one.server) == backup {
                one.accepted = one.accepted.max(Some(version));
            }
        }
        self.settle(told);
    }

    /// Leave a server out without the master (against rule R12).
    pub fn leave_out(&mut self, server: Server, told: &mut Vec<Told>) {
        self.required.retain(|one| one.server != server);
        self.settle(told);
    }

    /// Be able to give up a receiver that may be in the journal by now (against rule R14).
    pub fn unsay_ready(&mut self) {
        if let Some(copying) = &mut self.copying {
            copying.is_ready = false;
        }
    }

    /// Answer without a receiver that has not acknowledged the copy's end (against rule R14).
    pub fn pass_over_receiver(&mut self, told: &mut Vec<Told>) {
        let to = self.copying.as_ref().filter(|copying| !copying.is_ready);
        let to = to.map(|copying| copying.to);
        if let Some(at) = self.required.iter().position(|one| Some(one.server) == to) {
            let receiver = self.required.remove(at);
            self.settle(told);
            self.required.insert(at, receiver);
        }
    }

    /// Apply pushes until the end of a hand-over (against rule R17).
    pub fn thaw(&mut self) {
        self.is_frozen = false;
    }

    /// Begin a copy with rows from before (against rule R13).
    pub fn keep(&mut self, old: Data) {
        if !self.is_complete && self.data.is_some() {
            self.data = Some(old);
        }
    }

    /// Have the rows of a copy without the memory of stamps (against rule R13).
    pub fn forget_stamps(&mut self) {
        if let Some(data) = &mut self.data {
            data.stamps = Stamps::default();
        }
    }

    /// Drop the memory below `low` without refusing what comes for it (against rule R10).
    pub fn reopen(&mut self) {
        if let Some(data) = &mut self.data {
            let mut bytes = Vec::new();
            data.stamps.encode(&mut bytes);
            bytes[..8].fill(0);
            data.stamps = Stamps::decode(&bytes).expect("it was encoded just now");
        }
    }

    /// Take a later entry of the same reign for a reinstatement (against rule R5).
    pub fn reinstate(&mut self) {
        self.is_deposed = false;
    }
}
