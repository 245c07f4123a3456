//! One slot at one server: the state machine of rules R1 to R18. No sockets, no clock, no locks: the caller has them.
//!
//! A server is a slot's primary, its backup, the receiver of a copy, or nothing. What it is follows from the newest entry of the journal
//! that it knows and from the primary epoch of the data it holds.
//!
//! One file because these are states of one machine over the same data: nearly every rule has to look at what the slot is in the others.
use std::collections::VecDeque;

use crate::ps::protocol::catalog::Catalog;
use crate::ps::protocol::excerpt::Arrived;
use crate::ps::protocol::part::Part;
use crate::ps::protocol::placement::{Entry, Server};
use crate::ps::protocol::stamps::{Memory, Stamp};
use crate::ps::protocol::stream::{Deed, Message, Receipt, Streams};
use crate::ps::server::data::{Cursor, Data, Pace};

#[cfg(feature = "simulation")]
mod mistakes;

/// Names a push that waits for its answer, in the words of the process that has to give it.
pub type Ticket = u64;

/// What came with the frame of a push.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    /// The chunk that it is of; none for first values of variables.
    pub stamp: Option<Stamp>,
    /// All tasks before are done, as of this roll-back.
    pub low: u64,
    pub roll_back: u64,
    pub pace: Pace,
    /// The slot's version of which the gradient is: that with which the rows came.
    pub seen: u64,
}

/// Of a push that is of no version of the slot: it is never stale.
pub const UNSEEN: u64 = u64::MAX;

/// The answer to one part of a push (rule R3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Applied,
    Held,
    /// Its task has been done for long.
    Closed,
    /// This server is not the slot's primary, or no more.
    Moved,
    /// Not now.
    Busy,
    /// So much was applied since its rows were pulled that it is not: the chunk has to be computed again.
    Stale,
    /// It can't be applied; says why.
    Refused(String),
}

/// What others must be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Answered(Ticket, Answer),
    /// The master: the receiver of the copy that was ordered in this term holds everything.
    Ready {
        slot: u32,
        term: u64,
        to: Server,
        hands_over: bool,
    },
    /// Those whose pulls wait: rows may be read here, or not here any more.
    Readable,
}

/// The protocol was broken, by a mistake in it or in this program: a server that finds that ends, as one that died.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot}: {what}")]
pub struct Broken {
    pub slot: u32,
    pub what: String,
}

/// How a copy continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    More,
    /// The receiver has to accept some of it first.
    Waits,
    /// There is nothing more to be sent, or no copy.
    Over,
}

/// What a server says to a message from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    Accepted,
    /// The sender is not the slot's primary any more.
    Fenced,
}

/// A server whose acceptance answers wait for (rule R4).
#[derive(Debug)]
struct Required {
    server: Server,
    /// Messages before this one of the stream to it say nothing: they are of an earlier copy.
    since: u64,
    /// With this version it has everything that was before it became required.
    from: u64,
    /// The last version that it has accepted, none before it has everything that was before it became required.
    accepted: Option<u64>,
}

impl Required {
    fn has(&self, version: u64) -> bool {
        self.accepted >= Some(version.max(self.from))
    }
}

#[derive(Debug)]
struct Copying {
    to: Server,
    term: u64,
    hands_over: bool,
    /// What is still to be read; none when the copy's end is in the stream.
    cursor: Option<Cursor>,
    is_ready: bool,
}

/// A slot as one server sees it.
#[derive(Debug)]
pub struct Slot {
    me: Server,
    number: u32,
    /// The newest entry that it knows.
    entry: Option<Entry>,
    data: Option<Data>,
    /// Of the data.
    primary_epoch: u64,
    /// All of the data is there; false while a copy comes in.
    is_complete: bool,
    /// It has never held anything.
    is_fresh: bool,
    /// Another server has refused this one as primary, for this primary epoch.
    is_fenced: bool,
    required: Vec<Required>,
    /// Pushes that not all required servers have accepted, with the version that they made.
    pending: VecDeque<(Option<Stamp>, u64)>,
    /// Answers that wait until all required servers have a version.
    waiting: Vec<(u64, Ticket, Answer)>,
    copying: Option<Copying>,
    is_frozen: bool,
    /// The roll-back and the number of steps of the last step that went to other servers.
    stepped: (u64, u64),
    /// The version that the last step made here, until all required servers have accepted it.
    unread: Option<u64>,
    /// The step at which old rows were looked for last.
    swept: u32,
}

/// How often old rows are looked for in the time after which they are forgotten.
const SWEEPS: u32 = 8;

impl Slot {
    /// Know nothing yet.
    pub fn new(me: Server, number: u32) -> Slot {
        Slot {
            me,
            number,
            entry: None,
            data: None,
            primary_epoch: 0,
            is_complete: false,
            is_fresh: true,
            is_fenced: false,
            required: Vec::new(),
            pending: VecDeque::new(),
            waiting: Vec::new(),
            copying: None,
            is_frozen: false,
            stepped: (0, 0),
            unread: None,
            swept: 0,
        }
    }

    /// Return the newest entry that it knows.
    pub fn entry(&self) -> Option<Entry> {
        self.entry
    }

    /// Return what it holds, whole or not.
    pub fn data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// Whether it waits for its content from a snapshot.
    pub fn is_restoring(&self) -> bool {
        self.data.is_none() && self.is_primary()
    }

    /// Return the content for reading, if this server is the primary as far as it knows.
    pub fn read(&self) -> Option<&Data> {
        self.data.as_ref().filter(|_| self.is_primary())
    }

    /// Return the content for a snapshot, if it is whole and of this primary epoch (rule R26).
    pub fn cut(&self, primary_epoch: u64) -> Option<&Data> {
        let is_named = self.entry.is_some_and(|entry| entry.names(self.me));
        self.data
            .as_ref()
            .filter(|_| self.is_complete && is_named && self.primary_epoch == primary_epoch)
    }

    /// Whether all required servers have a chunk that this one holds (rules R4 and R8); no, if the asker knows a newer term.
    pub fn has(&self, stamp: Stamp, term: u64) -> bool {
        let Some(data) = self.read().filter(|_| !self.is_behind(term)) else {
            return false;
        };
        match data.stamps.look(stamp) {
            Memory::Closed => true,
            Memory::Held => !self.is_fenced && self.is_settled(self.needed(Some(stamp))),
            Memory::Unknown => false,
        }
    }

    /// Whether its rows are not to be read yet: not all required servers have accepted the last step (rule A4).
    ///
    /// A server that was left out, and does not know it, may have made that step without a gradient which went to its successor.
    pub fn is_unread(&self) -> bool {
        self.unread.is_some() && self.may_change()
    }

    /// Apply a push; without an answer now, some call will tell one for the ticket (rule R2).
    ///
    /// `term` is that of the entry by which it came here. A server that has not heard of it may have been named anew, to restore the slot:
    /// what it would apply now would be lost with what it holds (rule R24).
    pub fn push(
        &mut self,
        catalog: &Catalog,
        head: &Head,
        term: u64,
        arrived: Arrived<'_>,
        ticket: Ticket,
        streams: &mut impl Streams,
    ) -> Option<Answer> {
        if self.is_behind(term) {
            return Some(Answer::Busy);
        }
        let entry = match self.entry {
            Some(entry) if entry.primary == self.me && !self.is_fenced => entry,
            _ => return Some(Answer::Moved),
        };
        let Some(data) = self.data.as_mut() else {
            return Some(Answer::Busy);
        };
        data.stamps.raise(head.low, head.roll_back);
        let memory = head
            .stamp
            .map_or(Memory::Unknown, |stamp| data.stamps.look(stamp));
        if memory == Memory::Closed {
            return Some(Answer::Closed);
        }
        if self.is_frozen {
            return Some(Answer::Busy);
        }
        let part = match Part::read(arrived.words(), catalog, self.number) {
            Ok(part) => part,
            Err(what) => return Some(Answer::Refused(what)),
        };
        // A chunk's push that changes nothing counts all the same, or another attempt would not find it (rule R8).
        let changes = data.is_changed_by(&part);
        if memory == Memory::Held || (!changes && head.stamp.is_none()) {
            let version = self.needed(head.stamp);
            return self.answer(version, ticket, Answer::Held);
        }
        if data.lacks(&part) {
            // Its client saw the first value at a primary that was lost before this server had it (rule R11): it looks again, and gives it.
            return Some(Answer::Stale);
        }
        // Versions may fall when a backup takes over (rule R11).
        let staleness = data.version.saturating_sub(head.seen);
        let policy = catalog.policy();
        if changes && policy.max_staleness.is_some_and(|most| staleness > most) {
            return Some(Answer::Stale);
        }
        let mut pace = head.pace;
        if policy.modulates {
            pace.rate /= staleness.max(1) as f32;
        }
        // What is of no chunk, the first value of a variable, waits for nobody.
        let kept = head.stamp.filter(|_| policy.accumulates);
        if kept.is_some() {
            // An attempt from before a roll-back saw another model at the same step.
            if head.roll_back != data.stamps.roll_back() {
                return Some(Answer::Busy);
            }
            if part.dense.iter().any(|dense| dense.is_first) {
                return Some(Answer::Refused("a chunk's push brings first values".into()));
            }
        }
        let followers = self.followers();
        if !followers.iter().all(|server| streams.has_room(*server)) {
            return Some(Answer::Busy);
        }
        let data = self.data.as_mut().expect("it is there");
        let shared = (kept.is_some() || !followers.is_empty()).then(|| arrived.keep());
        match kept.zip(shared.as_ref()) {
            Some((stamp, shared)) => data.keep(stamp, pace, shared.clone()),
            None => data.apply(catalog, &part, head.stamp, pace),
        }
        let version = data.version;
        let low = data.stamps.low();
        if let Some(shared) = shared {
            for server in followers {
                let deed = Deed::Push {
                    stamp: head.stamp,
                    low,
                    roll_back: head.roll_back,
                    pace,
                    part: shared.clone(),
                };
                streams.put(server, self.message(entry, version, deed));
            }
        }
        self.pending.push_back((head.stamp, version));
        self.answer(version, ticket, Answer::Applied)
    }

    /// Apply all steps that are complete, as a roll-back has it (rule A3): before anybody reads, or pushes anything, of a later step.
    pub fn step(
        &mut self,
        catalog: &Catalog,
        roll_back: u64,
        steps: u64,
        streams: &mut impl Streams,
    ) -> Result<(), Broken> {
        if !self.may_change() {
            return Ok(());
        }
        let followers = self.followers();
        let (Some(entry), Some(data)) = (self.entry, self.data.as_mut()) else {
            return Ok(());
        };
        if data.stamps.roll_back() != roll_back {
            return Ok(());
        }
        // Also a step of which nothing is here: what was pushed may be at a successor of which this server has not heard.
        let is_new = self.stepped < (roll_back, steps);
        if !data.lags(steps) && (followers.is_empty() || !is_new) {
            return Ok(());
        }
        if let Err(what) = data.step(catalog, self.number, steps) {
            return Err(self.broken(&what));
        }
        let version = data.version;
        for server in followers {
            streams.put(server, self.message(entry, version, Deed::Step(steps)));
        }
        self.stepped = self.stepped.max((roll_back, steps));
        self.unread = (!self.is_settled(version)).then_some(version);
        Ok(())
    }

    /// Forget rows that nobody has pushed to for `expiry` steps, as of this step, if it is time to look: a look is at all rows.
    pub fn sweep(&mut self, expiry: u32, step: u64, streams: &mut impl Streams) {
        let step = u32::try_from(step).unwrap_or(u32::MAX);
        if step >= self.swept.saturating_add(expiry / SWEEPS + 1)
            && step > expiry
            && self.expire(step - expiry, streams)
        {
            self.swept = step;
        }
    }

    /// Forget rows that were pushed last before a step. False if this server is not the primary, or can't now.
    pub fn expire(&mut self, time: u32, streams: &mut impl Streams) -> bool {
        let followers = self.followers();
        if !self.may_change() || !followers.iter().all(|server| streams.has_room(*server)) {
            return false;
        }
        let (Some(entry), Some(data)) = (self.entry, self.data.as_mut()) else {
            return false;
        };
        data.expire(time);
        let version = data.version;
        for server in followers {
            streams.put(server, self.message(entry, version, Deed::Expire(time)));
        }
        true
    }

    /// Learn an entry of the journal; older ones than the newest known are ignored, and one that can't be changes nothing.
    pub fn learn(
        &mut self,
        entry: Entry,
        catalog: &Catalog,
        told: &mut Vec<Told>,
    ) -> Result<(), Broken> {
        if self.entry.is_some_and(|known| known.term >= entry.term) {
            return Ok(());
        }
        if let Some(what) = self.objection(entry) {
            return Err(self.broken(&format!("{what}, by {entry:?}")));
        }
        self.entry = Some(entry);
        // Each entry voids the copy that was ordered before it.
        self.copying = None;
        self.is_frozen = false;
        if self.begins_with(entry) {
            self.begin(Data::new(catalog), entry.primary_epoch, true);
        }
        if entry.primary == self.me {
            if self.is_new_to(entry) {
                self.let_read(told);
            }
            self.primary_epoch_as(entry);
            self.settle(told);
            return Ok(());
        }
        self.move_waiting(told);
        self.required.clear();
        self.is_fenced = false;
        self.let_read(told);
        if entry.backup == Some(self.me) {
            self.primary_epoch = entry.primary_epoch;
        } else {
            self.discard();
        }
        Ok(())
    }

    /// Take in what a snapshot holds, as the primary that restores it.
    pub fn load(&mut self, mut data: Data) {
        if let Some(entry) = self.entry.filter(|_| self.is_restoring()) {
            data.stamps.restored(entry.restored);
            self.begin(data, entry.primary_epoch, true);
        }
    }

    /// Judge and carry out a message of the slot's primary (rule R5). Of one that can't follow what is here nothing is carried out.
    pub fn hear(
        &mut self,
        message: &Message,
        catalog: &Catalog,
        told: &mut Vec<Told>,
    ) -> Result<Heard, Broken> {
        let sent = message.entry;
        let known = self.entry;
        if known.is_some_and(|known| known.primary_epoch > sent.primary_epoch) {
            return Ok(Heard::Fenced);
        }
        self.learn(sent, catalog, told)?;
        if matches!(message.deed, Deed::CopyBegin) {
            // A newer entry has voided the copy before it came.
            if known.is_none_or(|known| known.term <= sent.term) {
                let mut data = Data::new(catalog);
                data.version = message.version;
                self.begin(data, sent.primary_epoch, false);
            }
            return Ok(Heard::Accepted);
        }
        // Without data of this primary epoch it has been dropped within it, perhaps before it ever knew of it: the primary may not have heard of
        // that and waits for an acceptance, and a refusal would read as its end.
        if self.primary_epoch != sent.primary_epoch || self.data.is_none() {
            return Ok(Heard::Accepted);
        }
        if let Err(what) = self.carry_out(message, catalog) {
            return Err(self.broken(&what));
        }
        Ok(Heard::Accepted)
    }

    /// Carry a message out, whole or not at all: what was accepted before it stays as it is, and may be promoted.
    fn carry_out(&mut self, message: &Message, catalog: &Catalog) -> Result<(), String> {
        let data = self.data.as_mut().ok_or("it has nothing")?;
        if !follows(message, data.version, self.is_complete) {
            return Err(format!(
                "version {} follows {} (rule R6)",
                message.version, data.version
            ));
        }
        match &message.deed {
            Deed::Push {
                stamp,
                low,
                roll_back,
                pace,
                part: words,
            } => {
                let part = Part::read(words, catalog, self.number)?;
                // While a copy comes in, chunks of tasks that are done may wait for their step.
                if let Some(Stamp { task, chunk }) = stamp.filter(|_| self.is_complete)
                    && (task < *low || data.stamps.look(Stamp { task, chunk }) != Memory::Unknown)
                {
                    return Err(format!("it has chunk {chunk} of task {task} already"));
                }
                data.stamps.raise(*low, *roll_back);
                match stamp.filter(|_| catalog.policy().accumulates) {
                    Some(stamp) => data.keep(stamp, *pace, words.clone()),
                    None => data.apply(catalog, &part, *stamp, *pace),
                }
            }
            Deed::CopyBegin => {}
            Deed::CopyPiece(words) => data
                .take(catalog, words)
                .map_err(|error| error.to_string())?,
            Deed::CopyEnd(stamps) => {
                data.stamps = stamps.clone();
                self.is_complete = true;
            }
            Deed::Expire(time) => data.expire(*time),
            Deed::Step(step) => data.step(catalog, self.number, *step)?,
        }
        data.version = message.version;
        Ok(())
    }

    /// Take note that a server has accepted a message.
    pub fn accepted(&mut self, by: Server, receipt: &Receipt, told: &mut Vec<Told>) {
        if receipt.primary_epoch != self.primary_epoch {
            return;
        }
        if let Some(required) = self.required.iter_mut().find(|one| one.server == by)
            && receipt.number >= required.since
        {
            required.accepted = required.accepted.max(Some(receipt.version));
            self.settle(told);
        }
    }

    /// Take note that a server has refused a message of this primary epoch: nothing more is acknowledged in it, whatever comes.
    pub fn depose(&mut self, receipt: &Receipt, told: &mut Vec<Told>) {
        if receipt.primary_epoch == self.primary_epoch && self.is_primary() {
            self.is_fenced = true;
            self.copying = None;
            self.is_frozen = false;
            self.move_waiting(told);
            self.let_read(told);
        }
    }

    /// Begin a copy that the master has ordered in this term; false if it can't be.
    pub fn copy(
        &mut self,
        to: Server,
        term: u64,
        hands_over: bool,
        streams: &mut impl Streams,
    ) -> bool {
        let Some(entry) = self
            .entry
            .filter(|entry| entry.term == term && !entry.names(to))
        else {
            return false;
        };
        let Some(data) = self
            .data
            .as_ref()
            .filter(|_| self.may_change() && self.copying.is_none())
        else {
            return false;
        };
        let cursor = data.cursor();
        streams.put(to, self.message(entry, data.version, Deed::CopyBegin));
        for ((_, stamp), kept) in data.kept() {
            let deed = Deed::Push {
                stamp: Some(*stamp),
                low: data.stamps.low(),
                roll_back: data.stamps.roll_back(),
                pace: kept.pace,
                part: kept.words.clone(),
            };
            streams.put(to, self.message(entry, data.version, deed));
        }
        self.copying = Some(Copying {
            to,
            term,
            hands_over,
            cursor: Some(cursor),
            is_ready: false,
        });
        true
    }

    /// Put the next piece of a copy under way into the stream.
    pub fn go_on_copying(&mut self, catalog: &Catalog, streams: &mut impl Streams) -> Progress {
        let (Some(entry), Some(data), Some(copying)) =
            (self.entry, self.data.as_ref(), self.copying.as_mut())
        else {
            return Progress::Over;
        };
        let Some(cursor) = copying.cursor.as_mut() else {
            return Progress::Over;
        };
        if !streams.has_room(copying.to) {
            return Progress::Waits;
        }
        let (to, version) = (copying.to, data.version);
        let message = |deed| Message {
            slot: self.number,
            entry,
            version,
            deed,
        };
        if let Some(piece) = data.piece(catalog, cursor) {
            streams.put(to, message(Deed::CopyPiece(piece)));
            return Progress::More;
        }
        copying.cursor = None;
        let since = streams.put(to, message(Deed::CopyEnd(data.stamps.clone())));
        // From here on nothing is acknowledged that the receiver does not have (rule R14).
        self.required.push(Required {
            server: to,
            since,
            from: version,
            accepted: None,
        });
        Progress::Over
    }

    /// Give up a copy whose receiver is dead, unless it may be in the journal by now (rule R14).
    pub fn give_up_copy(&mut self, to: Server, told: &mut Vec<Told>) {
        if self
            .copying
            .as_ref()
            .is_some_and(|copying| copying.to == to && !copying.is_ready)
        {
            self.copying = None;
            self.is_frozen = false;
            self.required.retain(|required| required.server != to);
            self.settle(told);
        }
    }

    // ------------------------------------------------------------------ inside

    fn is_behind(&self, term: u64) -> bool {
        self.entry.is_none_or(|entry| entry.term < term)
    }

    fn is_primary(&self) -> bool {
        self.entry.is_some_and(|entry| entry.primary == self.me)
    }

    /// Whether nobody else can have changed the slot, as far as this server knows.
    pub fn may_change(&self) -> bool {
        self.is_primary() && !self.is_fenced && !self.is_frozen
    }

    fn message(&self, entry: Entry, version: u64, deed: Deed) -> Message {
        Message {
            slot: self.number,
            entry,
            version,
            deed,
        }
    }

    fn broken(&self, what: &str) -> Broken {
        Broken {
            slot: self.number,
            what: format!("{what} (server {}, {:?})", self.me, self.entry),
        }
    }

    /// Whether it begins with nothing under an entry: named without a copy, from the first, it has accepted nothing, so nothing has been
    /// acknowledged that it does not hold.
    fn begins_with(&self, entry: Entry) -> bool {
        self.is_fresh && entry.names(self.me) && entry.restored == 0
    }

    /// Return why an entry can't be, given what this server holds, if it can't.
    fn objection(&self, entry: Entry) -> Option<&'static str> {
        if self.begins_with(entry) {
            return None;
        }
        if entry.primary != self.me {
            let lacks = entry.backup == Some(self.me) && !self.is_complete;
            return lacks.then_some("it became backup without all rows");
        }
        if self.is_new_to(entry) {
            let lacks = entry.restored == 0 && !self.is_complete;
            return lacks.then_some("it became primary without all rows");
        }
        if !self.is_complete {
            return Some("it became primary without all rows");
        }
        let is_required = |server| self.required.iter().any(|one| one.server == server);
        let is_strange = entry.backup.is_some_and(|backup| !is_required(backup));
        (is_strange && self.version() != 0)
            .then_some("a backup was named that it has not copied to")
    }

    /// Whether it was not the primary in the primary epoch of an entry that says so.
    fn is_new_to(&self, entry: Entry) -> bool {
        self.data.is_none() || self.primary_epoch < entry.primary_epoch
    }

    fn version(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.version)
    }

    fn begin(&mut self, data: Data, primary_epoch: u64, is_complete: bool) {
        self.data = Some(data);
        self.primary_epoch = primary_epoch;
        self.is_complete = is_complete;
        self.is_fresh = false;
        self.stepped = (0, 0);
    }

    fn discard(&mut self) {
        self.data = None;
        self.is_complete = false;
    }

    /// Become or stay the primary under a new entry, to which there is no objection.
    fn primary_epoch_as(&mut self, entry: Entry) {
        let is_new = self.is_new_to(entry);
        if entry.restored != 0 && is_new {
            self.discard();
        }
        let version = self.version();
        if is_new {
            self.primary_epoch = entry.primary_epoch;
            self.is_fenced = false;
            self.pending.clear();
            self.required.clear();
            // A hand-over: all that the journal may name hold the same (rule R17).
            self.required.extend(entry.backup.map(|server| Required {
                server,
                since: 0,
                from: version,
                accepted: Some(version),
            }));
        } else {
            self.required
                .retain(|required| entry.backup == Some(required.server));
            if let Some(backup) = entry.backup
                && self.required.is_empty()
            {
                self.required.push(Required {
                    server: backup,
                    since: 0,
                    from: 0,
                    accepted: Some(0),
                });
            }
        }
    }

    /// Return who must hear of what changes the slot: the required servers, and the receiver of a copy.
    fn followers(&self) -> Vec<Server> {
        let copied = self
            .copying
            .iter()
            .filter(|copying| copying.cursor.is_some())
            .map(|copying| copying.to);
        self.required
            .iter()
            .map(|required| required.server)
            .chain(copied)
            .collect()
    }

    /// Return the version that all required servers must have for a chunk, or a first value, that is held.
    fn needed(&self, stamp: Option<Stamp>) -> u64 {
        self.pending
            .iter()
            .rev()
            .find(|(pending, _)| *pending == stamp)
            .map_or(0, |(_, version)| *version)
    }

    fn is_settled(&self, version: u64) -> bool {
        self.required.iter().all(|required| required.has(version))
    }

    fn answer(&mut self, version: u64, ticket: Ticket, answer: Answer) -> Option<Answer> {
        if self.is_settled(version) {
            self.revoke_task();
            return Some(answer);
        }
        self.waiting.push((version, ticket, answer));
        None
    }

    /// Forget about pushes that all required servers have.
    fn revoke_task(&mut self) {
        while let Some((_, version)) = self.pending.front()
            && self.is_settled(*version)
        {
            self.pending.pop_front();
        }
    }

    /// Give the answers that need not wait any more, and go on with a copy whose end has been accepted.
    fn settle(&mut self, told: &mut Vec<Told>) {
        if self.is_fenced {
            return;
        }
        let is_settled = |version| self.required.iter().all(|one| one.has(version));
        let settled = self
            .waiting
            .extract_if(.., |(version, ..)| is_settled(*version));
        told.extend(settled.map(|(_, ticket, answer)| Told::Answered(ticket, answer)));
        self.revoke_task();
        if self.unread.is_some_and(|version| self.is_settled(version)) {
            self.let_read(told);
        }
        let version = self.version();
        let Some(copying) = self
            .copying
            .as_mut()
            .filter(|copying| copying.cursor.is_none() && !copying.is_ready)
        else {
            return;
        };
        let Some(receiver) = self
            .required
            .iter()
            .find(|required| required.server == copying.to)
        else {
            return;
        };
        if receiver.has(0) {
            self.is_frozen = copying.hands_over;
            if !copying.hands_over || self.required.iter().all(|required| required.has(version)) {
                copying.is_ready = true;
                told.push(Told::Ready {
                    slot: self.number,
                    term: copying.term,
                    to: copying.to,
                    hands_over: copying.hands_over,
                });
            }
        }
    }

    /// Let those go on who wait to read: what is there, or elsewhere.
    pub(super) fn let_read(&mut self, told: &mut Vec<Told>) {
        if self.unread.take().is_some() {
            told.push(Told::Readable);
        }
    }

    fn move_waiting(&mut self, told: &mut Vec<Told>) {
        self.pending.clear();
        told.extend(
            self.waiting
                .drain(..)
                .map(|(_, ticket, _)| Told::Answered(ticket, Answer::Moved)),
        );
    }
}

/// Whether a message may come to a slot of this version: each change counts, and only pieces of a copy, and pushes that were kept before
/// it began, do not.
fn follows(message: &Message, version: u64, is_complete: bool) -> bool {
    let is_next = version.checked_add(1) == Some(message.version);
    let is_same = version == message.version;
    match message.deed {
        Deed::CopyPiece(_) | Deed::CopyEnd(_) => !is_complete && is_same,
        Deed::Push { .. } => is_next || (!is_complete && is_same),
        Deed::CopyBegin | Deed::Expire(_) | Deed::Step(_) => is_next,
    }
}
