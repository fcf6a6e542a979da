import J2Ci.jDVInterface;
import dicomscope.DICOMscope;
import java.awt.Component;
import java.awt.Container;
import java.awt.Rectangle;
import java.awt.Robot;
import java.awt.Toolkit;
import java.awt.image.BufferedImage;
import java.io.File;
import java.lang.reflect.Field;
import java.util.Arrays;
import javax.imageio.ImageIO;
import javax.swing.SwingUtilities;
import main.Controller;
import main.ImageActionEvent;
import main.MainContext;
import viewer.gui.ImageCanvas;

/**
 * Runs DICOMscope, opens films with their presentation states as its own button does, and takes a picture of each.
 *
 * Arguments: a film, its presentation state and the PNG to write, again and again.
 */
public final class ShowStates {
    private static final long LIMIT_MILLISECONDS = 15_000;

    private final Robot robot = new Robot();
    private DICOMscope scope;
    private jDVInterface state;

    private ShowStates() throws Exception {
        MainContext.instance(); // loads the native library
        SwingUtilities.invokeAndWait(() -> {
            scope = new DICOMscope();
            scope.setBounds(new Rectangle(Toolkit.getDefaultToolkit().getScreenSize()));
            scope.setVisible(true);
        });
        Field field = DICOMscope.class.getDeclaredField("dvi");
        field.setAccessible(true);
        state = (jDVInterface) field.get(scope);
    }

    public static void main(String[] words) throws Exception {
        ShowStates shown = new ShowStates();
        for (int number = 0; number < words.length; number += 3) {
            shown.open(words[number], words[number + 1]);
            ImageIO.write(shown.settled(), "png", new File(words[number + 2]));
        }
        System.exit(0);
    }

    private void open(String film, String presentation) throws Exception {
        SwingUtilities.invokeAndWait(() -> {
            int status = state.loadPState(presentation, film);
            if (status != 0) {
                throw new IllegalStateException("DICOMscope does not load " + presentation + ": status " + status);
            }
            Controller.instance().fireEvent(new ImageActionEvent(scope, ImageActionEvent.ACTION_SETNEWIMAGE, 1, 1));
            scope.switchToViewer();
        });
        robot.waitForIdle();
    }

    /** Takes pictures until two are the same. */
    private BufferedImage settled() throws Exception {
        Component canvas = find(scope, ImageCanvas.class);
        Rectangle where = new Rectangle(canvas.getLocationOnScreen(), canvas.getSize());
        BufferedImage before = null;
        for (long end = System.currentTimeMillis() + LIMIT_MILLISECONDS; System.currentTimeMillis() < end;) {
            Thread.sleep(400);
            robot.waitForIdle();
            BufferedImage picture = robot.createScreenCapture(where);
            if (before != null && Arrays.equals(pixels(before), pixels(picture))) {
                return picture;
            }
            before = picture;
        }
        throw new IllegalStateException("the picture never settles");
    }

    private static int[] pixels(BufferedImage picture) {
        return picture.getRGB(0, 0, picture.getWidth(), picture.getHeight(), null, 0, picture.getWidth());
    }

    private static Component find(Container within, Class<?> kind) {
        for (Component component : within.getComponents()) {
            Component found = kind.isInstance(component) ? component
                : component instanceof Container ? find((Container) component, kind) : null;
            if (found != null) {
                return found;
            }
        }
        return null;
    }
}
