//! The protocols' servers as the registry sees them. They hear of volumes that go or grow, and
//! count the clients of a volume.

use crate::volume::Volume;
use std::cell::RefCell;
use std::rc::Rc;

/// Takes the name of a volume that has gone, and why.
type OnGone = Box<dyn Fn(&str, &str)>;

/// Takes a volume and its new size in sectors.
type OnResized = Rc<dyn Fn(&Volume, u64)>;

/// Gives the number of clients of a volume.
type CountClients = Box<dyn Fn(&str) -> usize>;

/// The functions that the servers have set.
#[derive(Default)]
pub(super) struct Observers {
    gone: RefCell<Option<OnGone>>,
    resized: RefCell<Vec<OnResized>>,
    clients: RefCell<Option<CountClients>>,
}

impl Observers {
    /// Sets the function to call when a volume goes.
    pub fn on_gone(&self, gone: impl Fn(&str, &str) + 'static) {
        self.gone.replace(Some(Box::new(gone)));
    }

    /// A volume goes.
    pub fn gone(&self, name: &str, why: &str) {
        if let Some(gone) = &*self.gone.borrow() {
            gone(name, why);
        }
    }

    /// Adds a function to call when a volume has a new size.
    pub fn on_resized(&self, resized: impl Fn(&Volume, u64) + 'static) {
        self.resized.borrow_mut().push(Rc::new(resized));
    }

    /// A volume has got a new size.
    pub fn resized(&self, volume: &Volume, sectors: u64) {
        let all = self.resized.borrow().clone();
        for resized in all {
            resized(volume, sectors);
        }
    }

    /// Sets the function that counts the clients of a volume.
    pub fn count_clients(&self, clients: impl Fn(&str) -> usize + 'static) {
        self.clients.replace(Some(Box::new(clients)));
    }

    /// Clients of a volume.
    pub fn clients(&self, name: &str) -> usize {
        self.clients.borrow().as_ref().map_or(0, |clients| clients(name))
    }
}
