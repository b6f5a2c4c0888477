//! Ports that come and go while a switch works.

use super::{Loops, Port, PortNumber, Rules, Switch};

impl Switch {
    /// A port of this number is there from now on, and is down: of a number that was removed, or the next.
    pub fn put(&mut self, number: PortNumber, rules: Rules) {
        self.changes += 1;
        let mut port = Port::new(rules);
        port.owns_address = self.own.give(port.rules.mac, number) == number;
        if port.rules.mirror {
            self.mirrors.push(number);
        }
        match self.ports.get_mut(usize::from(number)) {
            Some(removed) => *removed = port,
            None => {
                self.ports.push(port);
                self.table.add_port();
            }
        }
    }

    /// It gets no frame any more, and nothing that is known leads to it.
    pub fn remove(&mut self, number: PortNumber) {
        self.set_up(number, false);
        if let Some(port) = self.ports.get_mut(usize::from(number)) {
            (port.owns_address, port.loops) = (false, Loops::default());
        }
        self.own.remove(number);
        self.mirrors.retain(|mirror| *mirror != number);
    }
}
