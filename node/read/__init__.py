"""Reading one film: route the object, decode its pixels, run the network, and code the findings."""
