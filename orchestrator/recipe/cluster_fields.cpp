// The rows of a cluster file. See fields.h.
#include "orchestrator/recipe/field_rows.h"

namespace tandem {

using enum FieldType;

std::vector<Field> cluster_rows() {
  return {
      {"schema", choice, "Names the kind and version of this file.", "", true, 0, 0, {"tandem.cluster/v1"}, true},
      {"name", name, "Short name of the cluster.", "cluster"},
      {"nodes", list, "The machines, in rank order. The first serves HTTP.", "", true, 1, 64},
      {"nodes[]", map, "One machine."},
      {"nodes[].name", name, "What the machine is called in plans, logs and errors.", "", true},
      {"nodes[].address", address, "How the controller reaches it; 127.0.0.1 is this machine.", "127.0.0.1"},
      {"nodes[].link_address", address, "Its address on the ranks' own network. Left out: `address`."},
      {"nodes[].user", name, "User to log in as. Left out: the current one."},
      {"nodes[].port", integer, "Port to log in at.", "22", false, 1, 65535},
      {"nodes[].devices", list, "Devices that ranks may use, one rank each. Left out: all it has.", "", false, 1, 64},
      {"nodes[].devices[]", device, "cpu, cuda:0, cuda:1, ..."},
      {"nodes[].folders", map, "Where things lie on this machine. Left out: the defaults."},
      {"nodes[].folders.hub", folder, "Downloads, in the Hugging Face cache's layout."},
      {"nodes[].folders.ranks", folder, "Each rank's share of a pack."},
      {"nodes[].folders.state", folder, "State and logs of jobs."},
      {"listen", address, "Address on which the first machine serves HTTP; 0.0.0.0 serves the network.", "127.0.0.1"},
      {"ports", map, "Ports on the first machine. Left out: free ones are chosen."},
      {"ports.http", integer, "The OpenAI-compatible server.", "", false, 1, 65535},
      {"ports.rendezvous", integer, "Where the ranks find each other. Unauthenticated: keep it on a private network.",
       "", false, 1, 65535},
      {"hub", map, "Where packs come from."},
      {"hub.endpoint", web_url, "A server that speaks the hub's protocol. Left out: HF_ENDPOINT, else the public hub."},
      {"programs", free_map, "Where the programs that engine.program names are installed.", "", false, 0, 64},
      {"programs.*", program, "Absolute path of one program."},
      {"env", free_map, "Environment of every rank, whatever the names: this file is the owner's.", "", false, 0, 256},
      {"env.*", env_value, "Value of one variable."},
      {"overrides", map, "Keys of a recipe that are different here, in the recipe's own shape."},
  };
}

}  // namespace tandem
