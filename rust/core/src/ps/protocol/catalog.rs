//! What a job's model has on servers: its tables, its dense variables, and the optimizer for both.
use crate::ps::memory::hash;
use crate::ps::memory::initial::Initial;
use crate::ps::memory::optimizer::{Rule, Update};

/// An embedding table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub name: String,
    /// Weights of a row.
    pub width: usize,
    pub initial: Initial,
    /// A row is made at its so manieth push; the gradients before are dropped.
    pub admission: u32,
    /// Whether the optimizer's weight decay is for it.
    pub decays: bool,
}

/// A dense variable, flat.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    pub name: String,
    pub length: usize,
    pub decays: bool,
    /// What is pushed is added to it, instead of being a gradient: statistics of the data.
    pub adds: bool,
}

/// What servers do beyond applying pushes as they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// The learning rate of a push is divided by its staleness.
    pub modulates: bool,
    /// A push that is staler is not applied.
    pub max_staleness: Option<u64>,
    /// Rows to which nobody has pushed for so many steps are forgotten.
    pub expiry: Option<u32>,
    /// Pushes are kept until all of their step are settled, and applied together (rules A1 to A3).
    pub accumulates: bool,
}

/// All of it. Tables and variables are named by their places in these lists.
#[derive(Debug, Clone, PartialEq)]
pub struct Catalog {
    seed: u64,
    slots: u32,
    tables: Vec<Table>,
    variables: Vec<Variable>,
    rule: Rule,
    decay: f32,
    policy: Policy,
    table_keys: Vec<u64>,
    variable_slots: Vec<u32>,
}

impl Catalog {
    /// Describe a model.
    ///
    /// Args: `seed` is for the rows' initial weights, `slots` the number of parts that tables and variables are split into, `decay` the
    /// weight decay, 0 for none.
    pub fn new(
        seed: u64,
        slots: u32,
        tables: Vec<Table>,
        variables: Vec<Variable>,
        rule: Rule,
        decay: f32,
    ) -> Catalog {
        let table_keys = tables
            .iter()
            .map(|table| hash::key_of_name(&table.name))
            .collect();
        let variable_slots = variables
            .iter()
            .map(|variable| hash::slot(hash::key_of_name(&variable.name), slots))
            .collect();
        Catalog {
            seed,
            slots,
            tables,
            variables,
            rule,
            decay,
            policy: Policy::default(),
            table_keys,
            variable_slots,
        }
    }

    /// Return it for servers of another policy.
    pub fn with_policy(self, policy: Policy) -> Catalog {
        Catalog { policy, ..self }
    }

    /// Return what servers do beyond applying pushes.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Return the number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Return the tables.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Return the dense variables.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// Return the optimizer's rule.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Return how many numbers the weights of rows have.
    pub fn numbers(&self, table: usize, ids: &[u64]) -> usize {
        self.tables
            .get(table)
            .map_or(0, |table| table.width.saturating_mul(ids.len()))
    }

    /// Return how many numbers a variable has.
    pub fn length(&self, variable: usize) -> usize {
        self.variables.get(variable).map_or(0, |one| one.length)
    }

    /// Return the slot of a row.
    pub fn slot_of_row(&self, table: usize, id: u64) -> u32 {
        hash::slot(hash::row(self.table_keys[table], id), self.slots)
    }

    /// Return the slot of a dense variable.
    pub fn slot_of_variable(&self, variable: usize) -> u32 {
        self.variable_slots[variable]
    }

    /// Return the numbers that a row takes with the optimizer's state.
    pub fn stride(&self, table: usize) -> usize {
        self.tables[table].width * (1 + self.rule.state())
    }

    /// Write what a row holds before its first push; `row` may be its weights alone.
    pub fn begin_row(&self, table: usize, id: u64, row: &mut [f32]) {
        let described = &self.tables[table];
        let (weights, state) = row.split_at_mut(described.width);
        described
            .initial
            .fill(self.seed, hash::row(self.table_keys[table], id), weights);
        self.rule.begin(state);
    }

    /// Return a dense variable with its first value and the optimizer's state.
    pub fn begin_variable(&self, value: &[f32]) -> Vec<f32> {
        let mut whole = value.to_vec();
        whole.resize(value.len() * (1 + self.rule.state()), 0.0);
        self.rule.begin(&mut whole[value.len()..]);
        whole
    }

    /// Return the optimizer at a learning rate and a step: for what does not decay, and for what does.
    pub fn updates(&self, rate: f32, step: u64) -> [Update; 2] {
        [0.0, self.decay].map(|decay| Update::new(self.rule, rate, decay, step))
    }

    /// Change a dense variable, which lies there with the optimizer's state, by its gradient, or by what is to be added to it.
    pub fn change(
        &self,
        variable: usize,
        numbers: &mut [f32],
        pushed: &[f32],
        updates: &[Update; 2],
    ) {
        let described = &self.variables[variable];
        if described.adds {
            let pairs = numbers.iter_mut().zip(pushed);
            pairs.for_each(|(number, change)| *number += change);
        } else {
            updates[usize::from(described.decays)].apply(numbers, pushed);
        }
    }
}
